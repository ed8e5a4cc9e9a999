"""Requests of `baton.v1.Inference` as requests to a `Backend`."""

from dataclasses import dataclass

from baton.api.backend import Backend, GenerateRequest
from baton.api.call_log import CallRecord
from baton.api.client_salt import client_salt
from baton.api.deadline import Deadline
from baton.api.errors import invalid
from baton.api.requests import RequestLabels, make_requests, refusal
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, inference_pb2
from baton.rpc.convert import sampling_from_proto


@dataclass(frozen=True)
class RequestReader:
    """Checks and converts messages."""

    backend: Backend
    text: TextService

    async def read(
        self,
        request: inference_pb2.GenerateRequest,
        owner: str | None,
        deadline: Deadline | None = None,
        record: CallRecord | None = None,
    ) -> GenerateRequest:
        """Return the request. Raises `ApiError` that says what is wrong with it.

        record: of the call that it is a part of; None: the call is not logged.
        """
        model = served_model(request.model, await self.backend.models())
        kind = request.WhichOneof("prompt")
        if kind is None:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "the request has no prompt; set text or token_ids"
            )
        if kind == "text":
            ids = await self.text.encode(request.text, param="text", most=model.max_model_len)
        else:
            ids = tuple(request.token_ids.ids)
        sampling = _sampling(request.sampling, len(ids))
        room = room_for_answer(ids, sampling.max_tokens, model, param=kind)
        if room < sampling.max_tokens:
            raise invalid(
                "max_tokens",
                f"the prompt has {len(ids)} tokens and the answer may have {sampling.max_tokens}, "
                f"but this model's context is {model.max_model_len}; lower max_tokens",
                expected=f"at most {room}",
                actual=sampling.max_tokens,
            )
        self.text.check_sampling(sampling, model)
        await self.text.check_grammar(sampling.grammar, "grammar")
        labels = RequestLabels(
            request.client_id or None,
            request.priority,
            routed_dp_rank=request.routed_dp_rank if request.HasField("routed_dp_rank") else None,
            owner=owner,
            cache_salt=client_salt(
                {"cache_salt": request.cache_salt if request.HasField("cache_salt") else None}
            ),
            deadline=deadline,
            record=record,
            explain=request.explain,
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
