"""Every way in says the same about the boundary values of every sampling parameter."""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import grpc
import pytest
import pytest_asyncio
import toy_tokenizer
from engine.engines import make_engine
from engine.hash_model import VOCAB
from fake_backend import Connect, FakeBackend
from kit.narrowing import present
from sampling_limits import WITHOUT_LIMITS, boundary_values, together_with

from baton.api.backend import ModelInfo
from baton.api.grpc.inference import InferenceServicer
from baton.api.text_service import TextService
from baton.core.errors import RequestError
from baton.core.sampling_params import SamplingParams
from baton.engine.request.request import RequestSpec
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.text.tokenizer import Tokenizer

JSON = {"content-type": "application/json"}
PROMPT = (1, 2, 3)
USER = [{"role": "user", "content": "hello"}]
# The names of parameters that an endpoint calls otherwise, and those that it lacks.
COMPLETIONS = {"prompt_logprobs_start": None, "logprob_token_ids": None}
CHAT = COMPLETIONS | {"logprobs": "top_logprobs"}
RESPONSES = COMPLETIONS | {
    "logprobs": "top_logprobs", "max_tokens": "max_output_tokens", "prompt_logprobs": None,
}  # fmt: skip
MESSAGES = {name: name for name in ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")}
MESSAGES["stop"] = "stop_sequences"
TOKENIZER_SIZE = toy_tokenizer.byte_level().get_vocab_size()
OF_THE_VOCABULARY = {"stop_token_ids", "logprob_token_ids", "allowed_token_ids", "logit_bias"}
NATIVE = {"min_tokens": "min_new_tokens", "max_tokens": "max_new_tokens"}
NATIVE_SCORES = {
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "prompt_logprobs_start": "logprob_start_len",
    "logprob_token_ids": "token_ids_logprob",
}

Verdict = Callable[[str, object], Awaitable[bool | None]]
"""A check of whether one API accepts a parameter's value; None where that API cannot express it."""


@dataclass
class EndlessBackend(FakeBackend):
    """A model whose context has room for any legal number of tokens."""

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("toy", 2**40, self.tokenizer.vocab_size)]


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return EndlessBackend(tokenizer)


@pytest_asyncio.fixture
async def verdicts(
    connect: Connect, backend: FakeBackend, text: TextService
) -> AsyncIterator[dict[str, Verdict]]:
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(backend, text), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = make_engine(tokenizer=backend.tokenizer)

    async with connect() as client, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)

        def unsaid(name: str, value: object) -> bool:
            """JSON can say that no token is allowed, and is refused; the others say any is."""
            return name == "allowed_token_ids" and value == ()

        async def post(path: str, body: dict[str, object]) -> bool:
            reply = await client.post(path, content=json.dumps(body).encode(), headers=JSON)
            assert reply.status_code in (200, 400), reply.text
            return reply.status_code == 200

        async def completions(name: str, value: object) -> bool | None:
            field = COMPLETIONS.get(name, name)
            if field is None or unsaid(name, value):
                return None
            body = {"prompt": PROMPT, field: value} | together_with(name)
            return await post("/v1/completions", body)

        async def chat(name: str, value: object) -> bool | None:
            field = CHAT.get(name, name)
            if field is None or unsaid(name, value):
                return None
            body = {"messages": USER, "max_tokens": 9, "logprobs": True, field: value}
            return await post(CHAT_PATH, body | together_with(name))

        async def responses(name: str, value: object) -> bool | None:
            field = RESPONSES.get(name, name)
            if field is None or unsaid(name, value):
                return None
            body = {"input": "hello", "max_output_tokens": 9, field: value}
            for key, each in together_with(name).items():
                body[present(RESPONSES.get(key, key))] = each
            return await post("/v1/responses", body)

        async def messages(name: str, value: object) -> bool | None:
            field = MESSAGES.get(name)
            if field is None:
                return None
            return await post("/v1/messages", {"messages": USER, "max_tokens": 9, field: value})

        async def native(name: str, value: object) -> bool | None:
            if name == "prompt_logprobs_start" and value == -1:
                return None  # SGLang's word for none
            if unsaid(name, value):
                return None
            body: dict[str, object] = {"input_ids": PROMPT, "return_logprob": True}
            if name in NATIVE_SCORES:
                start = {"logprob_start_len": 0} if name == "prompt_logprobs" else {}
                return await post("/generate", body | start | {NATIVE_SCORES[name]: value})
            given = {name: value} | together_with(name)
            params = {NATIVE.get(key, key): each for key, each in given.items()}
            return await post("/generate", body | {"sampling_params": params})

        async def over_grpc(name: str, value: object) -> bool:
            if name == "seed" and isinstance(value, int) and -(2**63) <= value < 0:
                value %= 2**64  # as the contract says
            try:
                fields: dict[str, Any] = {name: value} | together_with(name)
                sampling = common_pb2.SamplingParams(**fields)
            except (TypeError, ValueError):  # no message can carry it
                return False
            wanted = inference_pb2.GenerateRequest(
                token_ids=inference_pb2.TokenIds(ids=PROMPT), sampling=sampling
            )
            try:
                async for _ in stub.Generate(wanted, timeout=60):
                    pass
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
                return False
            return True

        async def in_process(name: str, value: object) -> bool:
            try:
                params = SamplingParams(**{name: value} | together_with(name))  # type: ignore[arg-type]
                engine.submit(RequestSpec("a", PROMPT, params))
            except RequestError:
                return False
            engine.cancel("a", "the test has its answer")
            engine.step()
            return True

        yield {
            "/v1/completions": completions,
            CHAT_PATH: chat,
            "/v1/responses": responses,
            "/v1/messages": messages,
            "/generate": native,
            "gRPC": over_grpc,
            "engine": in_process,
        }
    await server.stop(None)


CHAT_PATH = "/v1/chat/completions"
LIMITED = [field.name for field in fields(SamplingParams) if field.name not in WITHOUT_LIMITS]


@pytest.mark.parametrize("name", LIMITED)
async def test_every_way_in_gives_the_same_verdict(verdicts: dict[str, Verdict], name: str) -> None:
    cases = [(value, legal) for field, value, legal in boundary_values() if field == name]
    assert {legal for _, legal in cases} == {True, False}
    if name == "prompt_logprobs_start":  # it lies in the prompt: one more limit, on every way
        cases = [(value, legal and value <= len(PROMPT)) for value, legal in cases]
        cases += [(len(PROMPT), True), (len(PROMPT) + 1, False)]
    if name in OF_THE_VOCABULARY:  # one more limit, on every way
        cases = [(value, legal and max(value, default=0) < VOCAB) for value, legal in cases]
        # The engine's vocabulary is smaller than the tokenizer's here.
        for token, legal in ((VOCAB - 1, True), (TOKENIZER_SIZE, False)):
            cases.append(({token: 1.0} if name == "logit_bias" else (token,), legal))
    for value, legal in cases:
        said = {way: await verdict(name, value) for way, verdict in verdicts.items()}
        others = {way: each for way, each in said.items() if each is not None and each != legal}
        assert not others, f"{name} = {str(value)[:40]}: expected {legal}; {said}"
    assert all(not math.isnan(x) for x, legal in cases if legal and isinstance(x, float))
