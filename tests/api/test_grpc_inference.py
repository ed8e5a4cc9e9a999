"""`baton.v1.Inference` over a real gRPC server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from fake_backend import CONTEXT, FakeBackend

from baton.api.grpc.inference import InferenceServicer
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.rpc.errors import ERROR_METADATA

SAYS = "naïve 😀 STOPPED"


@pytest_asyncio.fixture
async def stub(
    backend: FakeBackend, text: TextService
) -> AsyncIterator[inference_pb2_grpc.InferenceStub]:
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(backend, text), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield inference_pb2_grpc.InferenceStub(channel)
    await server.stop(None)


def request(**fields: Any) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(**fields)


def options(**fields: Any) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(**fields)


async def replies(
    stub: inference_pb2_grpc.InferenceStub, wanted: inference_pb2.GenerateRequest
) -> list[inference_pb2.GenerateReply]:
    return [reply async for reply in stub.Generate(wanted, timeout=60)]


async def test_text_goes_in_and_text_and_ids_come_out_as_they_are_made(
    stub: inference_pb2_grpc.InferenceStub, backend: FakeBackend
) -> None:
    backend.says = SAYS
    wanted = request(
        client_id="mine",
        text="hello",
        stream=True,
        sampling=options(max_tokens=40, logprobs=1, prompt_logprobs_start=0, stop=["STOP"]),
    )
    got = await replies(stub, wanted)
    (asked,) = backend.seen
    assert asked.client_id == "mine"
    assert asked.prompt_ids == tuple(backend.tokenizer.encode("hello"))
    assert {reply.request_id for reply in got} == {asked.request_id}
    assert "".join(reply.text for reply in got) == "naïve 😀 "
    ids = [i for reply in got for i in reply.token_ids]
    assert backend.tokenizer.decode(ids).startswith("naïve 😀 STOP")
    assert [reply.first_index for reply in got if reply.token_ids] == list(range(len(ids)))
    assert [entry.token_id for reply in got for entry in reply.logprobs] == ids
    prompt = got[0].prompt_logprobs
    assert [entry.token_id for entry in prompt.tokens] == list(asked.prompt_ids)
    assert not prompt.tokens[0].HasField("logprob")
    last = got[-1].finished
    assert last.reason == common_pb2.STOP
    assert last.stop_string == "STOP"
    assert last.usage.cached_tokens == 1
    assert last.timings.ttft_us == 7
    assert not any(reply.HasField("finished") for reply in got[:-1])


async def test_without_streaming_one_reply_holds_it_all(
    stub: inference_pb2_grpc.InferenceStub, backend: FakeBackend
) -> None:
    backend.says = SAYS
    ids = inference_pb2.TokenIds(ids=[65, 66, 67])
    sampling = options(max_tokens=40, logprobs=0, prompt_logprobs_start=1)
    (reply,) = await replies(stub, request(token_ids=ids, sampling=sampling))
    assert reply.text == SAYS
    assert list(reply.token_ids) == backend.tokenizer.encode(SAYS)
    assert len(reply.logprobs) == len(reply.token_ids)
    assert reply.prompt_logprobs.start == 1
    assert [entry.token_id for entry in reply.prompt_logprobs.tokens] == [66, 67]
    assert reply.finished.usage.prompt_tokens == 3


BAD = [
    (request(), grpc.StatusCode.INVALID_ARGUMENT, "no prompt"),
    (request(text=""), grpc.StatusCode.INVALID_ARGUMENT, "text is empty"),
    (request(token_ids=inference_pb2.TokenIds()), grpc.StatusCode.INVALID_ARGUMENT, "no tokens"),
    (
        request(token_ids=inference_pb2.TokenIds(ids=[2**32 - 1])),
        grpc.StatusCode.INVALID_ARGUMENT,
        "token id 4294967295",
    ),
    (request(text="x " * CONTEXT), grpc.StatusCode.INVALID_ARGUMENT, "context length is 64"),
    (
        request(text="x", sampling=options(temperature=float("nan"))),
        grpc.StatusCode.INVALID_ARGUMENT,
        "temperature is nan",
    ),
    (
        request(text="x", sampling=options(top_p=-1.0)),
        grpc.StatusCode.INVALID_ARGUMENT,
        "top_p is -1.0",
    ),
    (request(text="x", model="other"), grpc.StatusCode.NOT_FOUND, "expected toy"),
]


@pytest.mark.parametrize(("bad", "code", "complaint"), BAD)
async def test_a_bad_request_is_refused_and_the_next_one_works(
    stub: inference_pb2_grpc.InferenceStub,
    bad: inference_pb2.GenerateRequest,
    code: grpc.StatusCode,
    complaint: str,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await replies(stub, bad)
    assert caught.value.code() == code
    assert complaint in caught.value.details()
    assert (await replies(stub, request(text="hello")))[0].text == "hello"


async def test_a_failure_brings_the_whole_error_in_the_trailing_metadata(
    stub: inference_pb2_grpc.InferenceStub, backend: FakeBackend
) -> None:
    backend.fail_after = 1
    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "lost", origin="decode-1", expected="alive")
    got = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for reply in stub.Generate(request(text="hello world", stream=True), timeout=60):
            got.append(reply)
    assert len(got) == 1
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    metadata = dict(caught.value.trailing_metadata())
    error = common_pb2.Error.FromString(metadata[ERROR_METADATA])
    assert (error.origin, error.expected, error.retryable) == ("decode-1", "alive", True)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_call_cancels_its_request(
    stub: inference_pb2_grpc.InferenceStub, backend: FakeBackend, stream: bool
) -> None:
    backend.hold_after = 1
    call = stub.Generate(request(text="hello world", stream=stream), timeout=60)
    reading = asyncio.create_task(anext(aiter(call)))
    await asyncio.wait_for(backend.holding.wait(), 60)
    call.cancel()
    await asyncio.wait_for(backend.was_cancelled.wait(), 60)
    assert backend.cancelled == [backend.seen[0].request_id]
    await asyncio.gather(reading, return_exceptions=True)
