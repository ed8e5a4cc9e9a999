"""The two ways to ask a cluster that the demo shows, each as a client would write it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import grpc
import openai

from baton.api.backend import Timings
from baton.api.wire import finished_from_proto
from baton.proto import inference_pb2, inference_pb2_grpc

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Reply:
    text: str
    timings: Mapping[str, int]  # microseconds by name, as proto/common.proto has them


def ask_grpc(address: str, prompt: str, max_tokens: int, show: Callable[[str], None]) -> Reply:
    """`show` gets the text as it comes."""
    request = inference_pb2.GenerateRequest(
        text=prompt,
        sampling=inference_pb2.SampleOptions(temperature=0, max_tokens=max_tokens),
        stream=True,
    )
    text, timings = "", Timings()
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for reply in stub.Generate(request, timeout=DEADLINE_S):
            text += reply.text
            show(reply.text)
            if reply.HasField("finished"):
                timings = finished_from_proto(reply.finished).timings
    return Reply(text, asdict(timings))


def ask_openai(url: str, question: str, max_tokens: int, show: Callable[[str], None]) -> Reply:
    """The same over HTTP, by OpenAI's own client."""
    text = ""
    timings: Mapping[str, int] = {}
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=DEADLINE_S) as client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                show(chunk.choices[0].delta.content)
            timings = (chunk.model_extra or {}).get("timings") or timings
    return Reply(text, timings)
