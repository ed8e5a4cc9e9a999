"""The endpoint `POST /generate`."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from baton.api.access.access import admit, owner_in
from baton.api.answers import AnswerDelta, merged, stream_answer
from baton.api.backend import Backend, GenerateRequest, ModelInfo
from baton.api.call_log import record_in
from baton.api.deadline import Deadline, within
from baton.api.disconnect import unless_disconnected
from baton.api.errors import invalid
from baton.api.fields.ignored import keep_ignored
from baton.api.replies import JsonReply
from baton.api.request_body import BodyReader, deadline_of
from baton.api.requests import RequestLabels, make_requests
from baton.api.sglang.answer import SglangAnswer, until_aborted
from baton.api.sglang.schema import DEFAULT_NEW_TOKENS, NATIVE_NAMES, Asked, GenerateBody
from baton.api.sse import EventStream
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.core.grammar import Grammar
from baton.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class _Call:
    """All answers to one body, in the order of its prompts. Each list has one entry for each
    answer.
    """

    requests: list[GenerateRequest]
    answers: list[SglangAnswer]
    streams: list[AsyncGenerator[AnswerDelta, None]]


@dataclass(frozen=True)
class GenerateEndpoint:
    backend: Backend
    text: TextService
    bodies: BodyReader
    incremental: bool  # streams send new text only
    ping_s: float  # of silent streams

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, GenerateBody)
        model = served_model(None, await self.backend.models())
        deadline = deadline_of(request, body.timeout)
        call = _Call([], [], [])
        async with within(deadline):
            for asked in body.asked():
                await self._add(call, asked, body, model, request, deadline)
        several = body.batched or len(call.answers) > 1
        if body.stream:
            return EventStream(_chunks(call, several, self.incremental), ping_s=self.ping_s)
        await unless_disconnected(request.scope, request.receive, _collect(call))
        replies = [answer.json() for answer in call.answers]
        return JsonReply(replies if several else replies[0])

    async def _add(
        self,
        call: _Call,
        asked: Asked,
        body: GenerateBody,
        model: ModelInfo,
        request: Request,
        deadline: Deadline | None,
    ) -> None:
        ids = await asked.prompt_ids(self.text, model)
        grammar = None
        if asked.sampling.constrained:
            grammar, _ = await self.text.usable_grammar(
                asked.sampling.wanted_grammar, request.scope
            )
        labels = RequestLabels(
            asked.label,
            body.priority or 0,
            body.dp_rank,
            owner_in(request.scope),
            asked.salt,
            deadline,
            record_in(request.scope),
            body.explain,
        )
        count = asked.sampling.n
        table = self.text.table if body.return_text_in_logprobs else None
        sampling = _sampling(asked, ids, model, grammar)
        wanted = asked.sampling.max_new_tokens
        if wanted is not None and sampling.max_tokens < wanted:
            keep_ignored(request.scope, ["sampling_params.max_new_tokens"])
        self.text.check_sampling(sampling, model, NATIVE_NAMES)
        requests = make_requests(ids, sampling, count, labels)
        admit(request, requests)
        for i, made in enumerate(requests):
            name = asked.reply_id or made.request_id
            if asked.reply_id is not None and count > 1:
                name = f"{name}_{i}"
            index = len(call.requests)
            stream = stream_answer(
                self.backend,
                self.text,
                made,
                index=index,
                skip_special_tokens=asked.sampling.skip_special_tokens,
            )
            call.requests.append(made)
            call.answers.append(SglangAnswer(name, len(ids), asked.logprobs, table))
            call.streams.append(until_aborted(stream, made, index))


def _sampling(
    asked: Asked, prompt_ids: Sequence[int], model: ModelInfo, grammar: Grammar | None
) -> SamplingParams:
    wanted = asked.sampling.max_new_tokens
    room = room_for_answer(prompt_ids, wanted, model, param=asked.param)
    start = asked.logprobs.start
    if start is not None and start > len(prompt_ids):
        raise invalid(
            "logprob_start_len",
            f"logprob_start_len is {start}, but the prompt has {len(prompt_ids)} tokens",
            expected=f"at most {len(prompt_ids)}",
            actual=start,
        )
    want = asked.logprobs
    if start == len(prompt_ids):
        want = replace(want, start=None)
    limit = min(room, DEFAULT_NEW_TOKENS) if wanted is None else room
    return asked.sampling.params(limit, want, model, grammar)


async def _collect(call: _Call) -> None:
    async with aclosing(merged(call.streams)) as deltas:
        async for delta in deltas:
            call.answers[delta.index].add(delta)


async def _chunks(
    call: _Call, several: bool, incremental: bool
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the whole reply so far for each delta, as SGLang does, or only its new part."""
    async with aclosing(merged(call.streams)) as deltas:
        async for delta in deltas:
            answer = call.answers[delta.index]
            answer.add(delta)
            if delta.token_ids or delta.text or delta.finished is not None:
                chunk = answer.segment() if incremental else answer.json()
                yield chunk | {"index": delta.index} if several else chunk
