"""The demo's two clients, gRPC and OpenAI, each as a user would write it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import grpc
import openai

from baton.core.finish import Timings
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.rpc.convert import finished_from_proto

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Reply:
    text: str
    timings: Mapping[str, int]  # microseconds by name, as proto/common.proto has them


def ask_grpc(address: str, prompt: str, max_tokens: int, show: Callable[[str], None]) -> Reply:
    """Ask over gRPC. Calls `show` with each part of the text."""
    request = inference_pb2.GenerateRequest(
        text=prompt,
        sampling=common_pb2.SamplingParams(temperature=0, max_tokens=max_tokens),
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
    """Ask over HTTP with OpenAI's client. Calls `show` with each part of the text."""
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
