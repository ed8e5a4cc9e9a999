"""Token ids beyond the vocabulary, wherever a request may name one."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import grpc
import pytest
import pytest_asyncio
from fake_backend import Connect, FakeBackend

from baton.api.grpc.inference import InferenceServicer
from baton.api.text_service import TextService
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.text.tokenizer import Tokenizer

COMPLETION: dict[str, Any] = {"prompt": "x"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
PLACES = {
    "completion-prompt": ("/v1/completions", lambda i: {"prompt": [5, i]}, "prompt"),
    "completion-prompts": ("/v1/completions", lambda i: {"prompt": [[5], [i]]}, "prompt"),
    "native-prompt": ("/generate", lambda i: {"input_ids": [5, i]}, "input_ids"),
    "native-prompts": ("/generate", lambda i: {"input_ids": [[5], [i]]}, "input_ids"),
    "detokenize": ("/detokenize", lambda i: {"tokens": [5, i]}, "tokens"),
    "token_ids_logprob": (
        "/generate",
        lambda i: {"text": "x", "return_logprob": True, "token_ids_logprob": [5, i]},
        "token_ids_logprob",
    ),
}
SAMPLING = {
    "logit_bias": lambda i: {"5": 1.0, str(i): 1.0},
    "allowed_token_ids": lambda i: [5, i],
    "stop_token_ids": lambda i: [5, i],
}


def with_field(body: dict[str, Any], name: str, token: int) -> dict[str, Any]:
    return body | {name: SAMPLING[name](token)}


def native_with(name: str, token: int) -> dict[str, Any]:
    return {"text": "x", "sampling_params": {name: SAMPLING[name](token)}}


for name in SAMPLING:
    PLACES |= {
        f"completion-{name}": (
            "/v1/completions",
            partial(with_field, COMPLETION, name),
            name,
        ),
        f"chat-{name}": ("/v1/chat/completions", partial(with_field, CHAT, name), name),
        f"native-{name}": (
            "/generate",
            partial(native_with, name),
            f"sampling_params.{name}",
        ),
    }


@pytest.mark.parametrize("place", PLACES)
async def test_http_takes_ids_of_the_vocabulary_alone(
    place: str, connect: Connect, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    path, body, param = PLACES[place]
    size = tokenizer.vocab_size
    async with connect() as client:
        reply = await client.post(path, json=body(size - 1))
        assert reply.status_code == 200, reply.text
        seen = len(backend.seen)
        for beyond in (size, 2**31, 2**32, 2**63, 2**64, -1):
            if param.endswith("logit_bias") and beyond in (2**63, 2**64):
                continue  # more digits than an id can have: tests/api/test_bad_input.py
            reply = await client.post(path, json=body(beyond))
            assert reply.status_code == 400, (beyond, reply.text)
            error = reply.json()["error"]
            assert error["param"] == param or (error["param"] or "").startswith(f"{param}."), error
            assert str(beyond) in error["message"]
    assert len(backend.seen) == seen, "a request with a wrong id was begun"


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


def with_prompt(token: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[5, token]))


def with_sampling(**fields: Any) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(text="x", sampling=common_pb2.SamplingParams(**fields))


MESSAGES = {
    "token_ids": with_prompt,
    "logit_bias": lambda i: with_sampling(logit_bias={5: 1.0, i: 1.0}),
    "allowed_token_ids": lambda i: with_sampling(allowed_token_ids=[5, i]),
    "stop_token_ids": lambda i: with_sampling(stop_token_ids=[5, i]),
    "logprob_token_ids": lambda i: with_sampling(logprobs=0, logprob_token_ids=[5, i]),
}


@pytest.mark.parametrize("field", MESSAGES)
async def test_grpc_takes_ids_of_the_vocabulary_alone(
    field: str,
    stub: inference_pb2_grpc.InferenceStub,
    backend: FakeBackend,
    tokenizer: Tokenizer,
) -> None:
    async def ask(token: int) -> None:
        wanted = MESSAGES[field](token)
        async for _ in stub.Generate(wanted, timeout=60):
            pass

    await ask(tokenizer.vocab_size - 1)
    seen = len(backend.seen)
    for beyond in (tokenizer.vocab_size, 2**31, 2**32 - 1):
        with pytest.raises(grpc.aio.AioRpcError, match=f"{field}.*{beyond}") as caught:
            await ask(beyond)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(backend.seen) == seen
    with pytest.raises(grpc.aio.AioRpcError, match=r"ids.*4294967295"):
        await stub.Detokenize(inference_pb2.DetokenizeRequest(ids=[5, 2**32 - 1]), timeout=60)


async def test_a_batch_over_grpc_is_refused_for_one_wrong_id(
    stub: inference_pb2_grpc.InferenceStub, backend: FakeBackend, tokenizer: Tokenizer
) -> None:
    requests = [with_prompt(5), with_prompt(tokenizer.vocab_size)]
    batch = inference_pb2.GenerateBatchRequest(requests=requests)
    with pytest.raises(grpc.aio.AioRpcError, match=r"requests\[1\].*token_ids"):
        async for _ in stub.GenerateBatch(batch, timeout=60):
            pass
    assert not backend.seen
