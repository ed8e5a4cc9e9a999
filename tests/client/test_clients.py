"""`baton.client` and the calls of `baton.v1.Inference` that it makes, over a real gRPC server."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import pytest
from fake_backend import CONTEXT, FakeBackend
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.polling import until

from baton.api.grpc.inference import InferenceServicer
from baton.api.server.grpc_server import INFERENCE, GrpcServer
from baton.api.text_service import TextService
from baton.client.async_client import AsyncClient
from baton.client.sync_client import Client
from baton.client.values import Completion, RequestOptions
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.core.supervised import ProcessSupervisor
from baton.proto import inference_pb2

SAYS = "naïve 😀 done"
DEADLINE_S = 60.0
SAMPLING = SamplingParams(max_tokens=40, logprobs=1, prompt_logprobs_start=0)
T = TypeVar("T")


async def blocking(work: Callable[[], T]) -> T:
    """Run a client that blocks beside the server's event loop."""
    return await asyncio.wait_for(asyncio.to_thread(work), DEADLINE_S)


async def test_both_clients_give_the_same_answers(address: str, backend: FakeBackend) -> None:
    backend.says = SAYS
    ids = backend.tokenizer.encode("hello")
    options = RequestOptions(client_id="mine", priority=3, cache_salt="s" * 32)

    def ask() -> tuple[Completion, str]:
        with Client(address, timeout_s=DEADLINE_S) as client:
            parts = list(client.stream(ids, SAMPLING, options))
            return client.generate("hello", SAMPLING, options), "".join(p.text for p in parts)

    answer, streamed = await blocking(ask)
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        other = await client.generate("hello", SAMPLING, options)
        parts = [part async for part in client.stream(ids, SAMPLING, options)]
    for each in (answer, other):
        assert each.text == SAYS
        assert list(each.token_ids) == backend.tokenizer.encode(SAYS)
        assert [entry.token_id for entry in each.logprobs] == list(each.token_ids)
        assert [entry.token_id for entry in each.prompt_logprobs] == ids
        assert each.finished.end.reason is FinishReason.STOP
        assert each.finished.usage.prompt_tokens == len(ids)
    assert streamed == "".join(part.text for part in parts) == SAYS
    assert [part.finished is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    assert {(r.client_id, r.priority, r.prompt_ids) for r in backend.seen} == {
        ("mine", 3, tuple(ids))
    }
    assert len({request.cache_salt for request in backend.seen}) == 1


async def test_models_tokens_and_their_text(address: str, backend: FakeBackend) -> None:
    def ask() -> tuple[object, ...]:
        with Client(address, timeout_s=DEADLINE_S) as client:
            ids = client.tokenize("hello 😀")
            return client.models(), ids, client.detokenize(ids)

    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        ids = await client.tokenize("hello 😀")
        found = (await client.models(), ids, await client.detokenize(ids))
        marked = await client.detokenize([0, *ids])
        bare = await client.detokenize([0, *ids], skip_special_tokens=True)
    assert found == await blocking(ask)
    (model,), ids, text = found
    assert (model.id, model.max_model_len) == ("toy", CONTEXT)
    assert ids == backend.tokenizer.encode("hello 😀")
    assert (text, marked, bare) == ("hello 😀", "<s>hello 😀", "hello 😀")


async def test_in_a_batch_each_answer_ends_by_itself(address: str, backend: FakeBackend) -> None:
    def ask() -> list[Completion | ApiError]:
        with Client(address, timeout_s=DEADLINE_S) as client:
            return client.generate_batch(["hey", "x", "you"], SAMPLING)

    backend.failure = ApiError(ErrorCode.UNAVAILABLE, "decode-1 was lost")
    backend.fail_after = 2  # tokens: "x" has one
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        for answers in (await blocking(ask), await client.generate_batch(["ab", "x"], SAMPLING)):
            failed = [each for each in answers if isinstance(each, ApiError)]
            assert [each.code for each in failed] == [ErrorCode.UNAVAILABLE] * len(failed)
            assert failed and "decode-1 was lost" in failed[0].message
            whole = [each for each in answers if isinstance(each, Completion)]
            assert [each.text for each in whole] == ["x"]


async def test_a_batch_streams_what_asks_for_it(address: str, backend: FakeBackend) -> None:
    requests = [
        inference_pb2.GenerateRequest(text="hello world", stream=True),
        inference_pb2.GenerateRequest(text="hello world"),
    ]
    method = f"/{INFERENCE}/GenerateBatch"
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_stream(
            method,
            request_serializer=inference_pb2.GenerateBatchRequest.SerializeToString,
            response_deserializer=inference_pb2.GenerateBatchReply.FromString,
        )(inference_pb2.GenerateBatchRequest(requests=requests), timeout=DEADLINE_S)
        replies = [reply async for reply in call]
    texts = {i: [r.reply.text for r in replies if r.index == i] for i in (0, 1)}
    assert "".join(texts[0]) == "hello world" and len(texts[0]) > 2
    assert texts[1] == ["hello world"]


async def test_a_batch_with_a_wrong_request_is_refused_by_its_place(
    address: str, backend: FakeBackend
) -> None:
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        batches: tuple[tuple[list[str | Sequence[int]], str], ...] = (
            (["hello", ""], r"requests\[1\]: "),
            (["hello", [10**6]], r"requests\[1\]: "),
            ([], "0 requests in a batch"),
            (["x"] * 257, "257 requests"),
        )
        for prompts, words in batches:
            with pytest.raises(ApiError, match=words) as caught:
                await client.generate_batch(prompts)
            assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert not backend.seen


async def test_an_abort_stops_requests_by_their_label(address: str, backend: FakeBackend) -> None:
    backend.hold_after = 1
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        options = RequestOptions(client_id="mine")
        asking = asyncio.create_task(client.generate_batch(["hello", "world"], SAMPLING, options))
        await until(lambda: len(backend._held) >= 2)
        assert await client.abort("other") == 0
        assert await client.abort("mine") == 2
        answers = await asking
        assert [each.code for each in answers if isinstance(each, ApiError)] == [
            ErrorCode.CANCELLED
        ] * 2
        with pytest.raises(ApiError, match="expected a name"):
            await client.abort("")


async def test_a_deadline_that_passes_stops_the_request_on_the_server(
    address: str, backend: FakeBackend
) -> None:
    backend.hold_after = 1

    def ask() -> None:
        with Client(address) as client:
            client.generate("hello", timeout_s=0.3)

    with pytest.raises(ApiError) as caught:
        await blocking(ask)
    assert caught.value.code is ErrorCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(backend.was_cancelled.wait(), DEADLINE_S)
    assert backend.cancelled == [backend.seen[0].request_id]


async def test_an_iterator_that_is_closed_stops_the_request(
    address: str, backend: FakeBackend
) -> None:
    backend.hold_after = 1
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        parts = client.stream("hello")
        await anext(parts)
        await parts.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(backend.was_cancelled.wait(), DEADLINE_S)


async def test_errors_say_what_the_server_said(address: str, backend: FakeBackend) -> None:
    async with AsyncClient(address, timeout_s=DEADLINE_S) as client:
        for call, code, words in (
            (client.tokenize("x", model="other"), ErrorCode.NOT_FOUND, "not served here"),
            (client.tokenize(""), ErrorCode.INVALID_REQUEST, "text is empty"),
            (client.detokenize([10**6]), ErrorCode.INVALID_REQUEST, "token id 1000000"),
            (client.generate([]), ErrorCode.INVALID_REQUEST, "no tokens"),
        ):
            with pytest.raises(ApiError, match=words) as caught:
                await call
            assert caught.value.code is code
    async with AsyncClient("127.0.0.1:1", timeout_s=DEADLINE_S) as nobody:
        with pytest.raises(ApiError) as caught:
            await nobody.models()
        assert caught.value.code is ErrorCode.UNAVAILABLE and caught.value.retryable


async def test_calls_that_wait_are_answered_once_a_router_listens_again(
    address: str, backend: FakeBackend, text: TextService, server: GrpcServer
) -> None:
    backend.says = SAYS

    def ask() -> Completion:
        with Client(address, timeout_s=DEADLINE_S, wait=True) as client:
            return client.generate("hello", SAMPLING)

    async with (
        AsyncClient(address, timeout_s=DEADLINE_S, wait=True) as waiting,
        AsyncClient(address, timeout_s=DEADLINE_S) as hasty,
    ):
        assert (await waiting.generate("hello", SAMPLING)).text == SAYS
        await server.stop(0.1)
        asked = asyncio.gather(waiting.generate("hello", SAMPLING), blocking(ask))
        with pytest.raises(ApiError) as caught:
            await hasty.models()
        assert caught.value.code is ErrorCode.UNAVAILABLE and not asked.done()
        servicer = InferenceServicer(backend, text)
        port = int(address.rpartition(":")[2])
        later = GrpcServer(servicer, "127.0.0.1", port, ProcessSupervisor(), max_body_bytes=1 << 20)
        await later.start()
        assert [each.text for each in await asked] == [SAYS, SAYS]
        await later.stop(0.1)


METHODS = [method.name for method in inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods]


@pytest.mark.parametrize("method", METHODS)
async def test_bytes_that_are_no_message_are_invalid(address: str, method: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_stream(f"/{INFERENCE}/{method}")(b"\xff\xff\xff", timeout=DEADLINE_S)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no message of this method" in (await call.details() or "")


REQUESTS = {
    method.name: GetMessageClass(method.input_type)
    for method in inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods
}
words = st.text(max_size=6) | st.sampled_from(["toy", "hello", ""])
numbers = st.integers(0, 2**32 - 1) | st.integers(0, 299)
sampling = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.floats(width=32) | st.just(0.0),
        "top_k": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 50),
        "top_p": st.floats(0, 1, width=32),
        "seed": st.integers(0, 2**64 - 1),
        "stop": st.lists(words, max_size=2),
        "stop_token_ids": st.lists(numbers, max_size=2),
        "max_tokens": st.integers(0, 20) | numbers,
        "logprobs": st.integers(0, 3) | numbers,
        "prompt_logprobs_start": st.integers(0, 3),
        "grammar": st.fixed_dictionaries({"kind": words, "text": words}),
    },
)
generate = st.fixed_dictionaries(
    {},
    optional={
        "client_id": words,
        "model": st.sampled_from(["", "toy"]) | words,
        "text": words,
        "sampling": sampling,
        "stream": st.booleans(),
        "priority": st.integers(-1000, 1000) | st.integers(-(2**31), 2**31 - 1),
        "cache_salt": words,
    },
) | st.fixed_dictionaries(
    {"token_ids": st.fixed_dictionaries({"ids": st.lists(numbers, max_size=5)})}
)
likely = st.fixed_dictionaries(
    {"text": st.text("helo wrd", min_size=1, max_size=6)},
    optional={
        "sampling": st.fixed_dictionaries(
            {},
            optional={
                "temperature": st.floats(0, 2, width=32),
                "top_p": st.floats(0.125, 1, width=32),
                "seed": st.integers(0, 2**64 - 1),
                "max_tokens": st.integers(1, 20),
                "stop": st.lists(st.text("helo", min_size=1, max_size=3), max_size=2),
            },
        ),
        "stream": st.booleans(),
        "priority": st.integers(-1000, 1000),
    },
)
"""Requests that are legal for the most part: among the others few are."""
MESSAGES = {
    "Generate": generate,
    "GenerateBatch": st.fixed_dictionaries({"requests": st.lists(generate, max_size=3)}),
    "Tokenize": st.fixed_dictionaries({"text": words}, optional={"model": words}),
    "Detokenize": st.fixed_dictionaries({"ids": st.lists(numbers, max_size=5)}),
    "ListModels": st.just({}),
    "Abort": st.fixed_dictionaries({}, optional={"name": words, "all": st.booleans()}),
}
calls = st.one_of(
    *(st.tuples(st.just(method), strategy) for method, strategy in MESSAGES.items()),
    st.tuples(st.just("Generate"), likely),
    st.tuples(
        st.just("GenerateBatch"),
        st.fixed_dictionaries({"requests": st.lists(likely, min_size=1, max_size=2)}),
    ),
    st.tuples(st.sampled_from(METHODS), st.binary(max_size=40)),
)
FINE = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
}  # fmt: skip


def test_there_is_a_strategy_for_every_method() -> None:
    assert MESSAGES.keys() == set(METHODS)


def test_any_messages_get_an_answer_or_a_clear_refusal(
    text: TextService, backend: FakeBackend, request: pytest.FixtureRequest
) -> None:
    verdicts: list[grpc.StatusCode] = []

    async def run() -> None:
        server = GrpcServer(
            InferenceServicer(backend, text),
            "127.0.0.1",
            0,
            ProcessSupervisor(),
            max_body_bytes=1 << 20,
        )
        await server.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")
        loop = asyncio.get_running_loop()

        async def send(method: str, raw: bytes) -> None:
            call = channel.unary_stream(f"/{INFERENCE}/{method}")(raw, timeout=DEADLINE_S)
            with suppress(grpc.aio.AioRpcError):
                async for _ in call:  # a status comes after all replies were read
                    pass
            code = await call.code()
            assert code in FINE, f"{method} {raw!r}: {code} {await call.details()}"
            assert code is grpc.StatusCode.OK or await call.details()
            verdicts.append(code)

        @settings(
            max_examples=request.config.getoption("--fuzz"),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(call=calls)
        def fuzz(call: tuple[str, Any]) -> None:
            method, body = call
            raw = body if isinstance(body, bytes) else REQUESTS[method](**body).SerializeToString()
            asyncio.run_coroutine_threadsafe(send(method, raw), loop).result(DEADLINE_S)

        try:
            await asyncio.to_thread(fuzz)
        finally:
            await channel.close()
            await server.stop(0.1)

    asyncio.run(run())
    accepted = sum(code is grpc.StatusCode.OK for code in verdicts)
    print(f"{accepted} of {len(verdicts)} inputs accepted")
    assert accepted >= 0.2 * len(verdicts), f"{accepted} of {len(verdicts)} were accepted"
