"""The clients' values as messages of `baton.v1.Inference`, and back."""

import json
from collections.abc import Iterable
from dataclasses import replace

import grpc

from baton.client.values import AnswerPart, Completion, ModelEntry, Prompt, RequestOptions
from baton.core.error_codes import ERROR_STATUS, ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished
from baton.core.sampling_params import SamplingParams
from baton.proto import inference_pb2
from baton.rpc.convert import (
    finished_from_proto,
    logprob_from_proto,
    sampling_to_proto,
)
from baton.rpc.errors import ERROR_METADATA, error_from_proto, error_of_call

_BY_STATUS = {
    ERROR_STATUS[code].grpc: code
    for code in (
        ErrorCode.CANCELLED,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.OVERLOADED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.PERMISSION_DENIED,
    )
}
"""The codes of calls that gRPC itself ended, by its status. Any other is UNAVAILABLE."""


def request_of(
    prompt: Prompt, sampling: SamplingParams, options: RequestOptions, *, stream: bool
) -> inference_pb2.GenerateRequest:
    """Return a request for one answer."""
    request = inference_pb2.GenerateRequest(
        client_id=options.client_id,
        model=options.model,
        sampling=sampling_to_proto(sampling),
        stream=stream,
        routed_dp_rank=options.routed_dp_rank,
        priority=options.priority,
        cache_salt=options.cache_salt,
        explain=options.explain,
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(prompt)
    return request


def part_of(reply: inference_pb2.GenerateReply) -> AnswerPart:
    return AnswerPart(
        reply.request_id,
        reply.text,
        reply.first_index,
        tuple(reply.token_ids),
        tuple(logprob_from_proto(entry) for entry in reply.logprobs),
        tuple(logprob_from_proto(entry) for entry in reply.prompt_logprobs.tokens),
        _finished(reply),
    )


def _finished(reply: inference_pb2.GenerateReply) -> Finished | None:
    """Return the end of the answer, with its explanation; None: it goes on."""
    if not reply.HasField("finished"):
        return None
    finished = finished_from_proto(reply.finished)
    if not reply.explanation:
        return finished
    return replace(finished, explanation=json.loads(reply.explanation))


def answer_of(part: AnswerPart) -> Completion:
    """Return the answer whose only part this is. Raises `ApiError` if it has no end."""
    if part.finished is None:
        raise ApiError(ErrorCode.DATA_LOSS, "the answer came without its end")
    return Completion(
        part.request_id,
        part.text,
        part.token_ids,
        part.logprobs,
        part.prompt_logprobs,
        part.finished,
    )


def batch_of(
    replies: Iterable[inference_pb2.GenerateBatchReply], count: int
) -> list[Completion | ApiError]:
    """Return the answers of a batch in the order of its requests."""
    found: dict[int, Completion | ApiError] = {}
    for each in replies:
        failed = each.HasField("error")
        found[each.index] = (
            error_from_proto(each.error) if failed else answer_of(part_of(each.reply))
        )
    lost = ApiError(ErrorCode.DATA_LOSS, "the batch ended without this answer")
    return [found.get(i, lost) for i in range(count)]


def models_of(reply: inference_pb2.ListModelsReply) -> list[ModelEntry]:
    return [
        ModelEntry(each.id, each.max_model_len, each.vocab_size, each.created, each.root)
        for each in reply.models
    ]


def error_of(failed: grpc.RpcError, address: str) -> ApiError:
    """Return the error that a call ended with: the server's, or one for gRPC's own status."""
    if any(key == ERROR_METADATA for key, _ in failed.trailing_metadata() or ()):
        return error_from_proto(error_of_call(failed, address))
    code = _BY_STATUS.get(failed.code().name, ErrorCode.UNAVAILABLE)
    return ApiError(code, f"{address}: {failed.code().name}: {failed.details()}", origin=address)
