"""Answers as replies of `baton.v1.Inference`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson

from baton.api.answers import AnswerDelta, WholeAnswer, collect
from baton.api.backend import GenerateRequest
from baton.core.errors import ApiError
from baton.core.logprobs import PromptLogprobs
from baton.proto import inference_pb2
from baton.rpc.convert import finished_to_proto, logprob_to_proto, prompt_logprobs_to_proto
from baton.rpc.errors import error_to_proto

Replies = AsyncGenerator[inference_pb2.GenerateReply, None]


async def streamed(request: GenerateRequest, deltas: AsyncGenerator[AnswerDelta, None]) -> Replies:
    """Yield a reply for each delta."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield _reply(request, delta)


async def whole(request: GenerateRequest, deltas: AsyncGenerator[AnswerDelta, None]) -> Replies:
    """Yield one reply, at the end."""
    (answer,) = await collect(deltas, 1)
    yield _reply(request, _joined(request, answer))


async def in_batch(
    index: int, replies: Replies
) -> AsyncGenerator[inference_pb2.GenerateBatchReply, None]:
    """Yield the replies of one request of a batch. Its error is the last of them."""
    try:
        async with aclosing(replies):
            async for reply in replies:
                yield inference_pb2.GenerateBatchReply(index=index, reply=reply)
    except ApiError as error:
        yield inference_pb2.GenerateBatchReply(index=index, error=error_to_proto(error))


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
    prompt, finished = delta.prompt_logprobs, delta.finished
    explained = None if finished is None else finished.explanation
    return inference_pb2.GenerateReply(
        request_id=request.request_id,
        first_index=delta.first_index,
        token_ids=delta.token_ids,
        text=delta.text,
        logprobs=[logprob_to_proto(entry) for entry in delta.logprobs],
        prompt_logprobs=prompt_logprobs_to_proto(prompt) if prompt else None,
        finished=finished_to_proto(finished) if finished else None,
        explanation="" if explained is None else orjson.dumps(explained).decode(),
    )
