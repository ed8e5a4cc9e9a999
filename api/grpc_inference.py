"""The gRPC service `baton.v1.Inference` over a `Backend`."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from baton.api.access import open_call
from baton.api.answers import AnswerDelta, WholeAnswer, collect, stream_answer
from baton.api.backend import Backend, GenerateRequest
from baton.api.client_salt import client_salt
from baton.api.key_gate import KeyGate
from baton.api.requests import RequestLabels, make_requests, refusal
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.logprobs import PromptLogprobs
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc
from baton.rpc.convert import (
    finished_to_proto,
    logprob_to_proto,
    prompt_logprobs_to_proto,
    sampling_from_proto,
)


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """The service, for `grpc.aio` servers. A call that the client cancels cancels its request."""

    def __init__(self, backend: Backend, text: TextService, keys: KeyGate | None = None) -> None:
        """keys: those that `KeyInterceptor` asks for; None serves everybody."""
        self._backend = backend
        self._text = text
        self._keys = keys

    async def Generate(
        self, request: inference_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[inference_pb2.GenerateReply]:
        async with open_call(context, self._keys) as call:
            wanted = await self._request(request, call.owner if call else None)
            if call is not None:
                call.admit([wanted])
            deltas = stream_answer(self._backend, self._text, wanted)
            replies = _stream(wanted, deltas) if request.stream else _whole(wanted, deltas)
            async with contextlib.aclosing(replies):
                async for reply in replies:
                    yield reply

    async def _request(
        self, request: inference_pb2.GenerateRequest, owner: str | None
    ) -> GenerateRequest:
        model = served_model(request.model, await self._backend.models())
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "the request has no prompt; set text or token_ids"
            )
        if kind == "text":
            ids = await self._text.encode(request.text, param="text", most=model.max_model_len)
        else:
            ids = tuple(request.token_ids.ids)
        sampling = _sampling(request.sampling, len(ids))
        room_for_answer(ids, sampling.max_tokens, model, param=kind)
        self._text.check_sampling(sampling, model)
        await self._text.check_grammar(sampling.grammar, "grammar")
        labels = RequestLabels(
            request.client_id or None,
            request.priority,
            routed_dp_rank=request.routed_dp_rank if request.HasField("routed_dp_rank") else None,
            owner=owner,
            cache_salt=client_salt(
                {"cache_salt": request.cache_salt if request.HasField("cache_salt") else None}
            ),
        )
        return make_requests(ids, sampling, 1, labels)[0]


def _sampling(message: common_pb2.SamplingParams, prompt_len: int) -> SamplingParams:
    """Return the sampling parameters. Raises `ApiError` that names the wrong parameter."""
    try:
        sampling = sampling_from_proto(message)
        sampling.check_prompt(prompt_len)
        return sampling
    except RequestError as error:
        raise refusal(error) from error


async def _stream(
    request: GenerateRequest, deltas: AsyncGenerator[AnswerDelta, None]
) -> AsyncGenerator[inference_pb2.GenerateReply, None]:
    async with contextlib.aclosing(deltas):
        async for delta in deltas:
            yield _reply(request, delta)


async def _whole(
    request: GenerateRequest, deltas: AsyncGenerator[AnswerDelta, None]
) -> AsyncGenerator[inference_pb2.GenerateReply, None]:
    (answer,) = await collect(deltas, 1)
    yield _reply(request, _joined(request, answer))


def _joined(request: GenerateRequest, answer: WholeAnswer) -> AnswerDelta:
    prompt = None
    if answer.prompt_logprobs:
        start = request.sampling.prompt_logprobs_start or 0
        prompt = PromptLogprobs(start, tuple(answer.prompt_logprobs))
    return AnswerDelta(
        index=0,
        text=answer.text,
        first_index=0,
        token_ids=tuple(answer.token_ids),
        logprobs=tuple(answer.logprobs),
        prompt_logprobs=prompt,
        finished=answer.finished,
    )


def _reply(request: GenerateRequest, delta: AnswerDelta) -> inference_pb2.GenerateReply:
    prompt = delta.prompt_logprobs
    return inference_pb2.GenerateReply(
        request_id=request.request_id,
        first_index=delta.first_index,
        token_ids=delta.token_ids,
        text=delta.text,
        logprobs=[logprob_to_proto(entry) for entry in delta.logprobs],
        prompt_logprobs=prompt_logprobs_to_proto(prompt) if prompt else None,
        finished=finished_to_proto(delta.finished) if delta.finished else None,
    )
