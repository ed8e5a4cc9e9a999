"""The endpoint `POST /v1/completions`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from baton.api.access.access import admit
from baton.api.answers import WholeAnswer, collect, stream_answers
from baton.api.backend import Backend, GenerateRequest, ModelInfo
from baton.api.deadline import within
from baton.api.disconnect import unless_disconnected
from baton.api.echo import Echo
from baton.api.fields.ignored import keep_ignored
from baton.api.openai.completion_choice import CompletionChoices
from baton.api.openai.completion_schema import CompletionBody
from baton.api.openai.stream import Envelope, chunks
from baton.api.replies import JsonReply
from baton.api.request_body import BodyReader, deadline_of, labels_of
from baton.api.requests import RequestLabels, make_requests
from baton.api.sse import EventStream
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.core.grammar import Grammar
from baton.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class CompletionsEndpoint:
    """The handler of `POST /v1/completions`."""

    backend: Backend
    text: TextService
    bodies: BodyReader
    ping_s: float  # of silent streams

    async def post(self, request: Request) -> Response:
        body = await self.bodies.read(request, CompletionBody)
        deadline = deadline_of(request, body.timeout)
        body.check()
        model = served_model(body.model, await self.backend.models())
        labels = labels_of(request, body, deadline)
        requests: list[GenerateRequest] = []
        echoes: list[Echo] = []
        async with within(deadline):
            grammar = None
            if body.constrained:
                grammar, _ = await self.text.usable_grammar(body.wanted_grammar, request.scope)
            for number, prompt in enumerate(body.prompt):
                if body.prepared is None:
                    ids = await body.prompt_ids(prompt, self.text, model)
                else:
                    ids = body.prepared.prompts[number]
                made = self._requests(ids, body, model, labels, grammar)
                if made[0].sampling.max_tokens < body.answer_tokens:
                    keep_ignored(request.scope, ["max_tokens"])
                admit(request, made)
                requests += made
                if body.prepared is None:
                    echo = await body.echo_of(prompt, ids, self.text)
                else:
                    echo = body.prepared.echoes[number]
                echoes += [echo] * len(made)
        form = CompletionChoices(
            self.text,
            echoes,
            body.skip_special_tokens,
            body.logprobs is not None,
            body.return_token_ids,
            body.prompt_logprobs is not None,
        )
        deltas = stream_answers(
            self.backend, self.text, requests, skip_special_tokens=body.skip_special_tokens
        )
        reply_id = requests[0].request_id
        envelope = Envelope(
            f"cmpl-{reply_id}",
            "text_completion",
            model.model_id,
            body.computed,
            body.include_usage,
            cached_details=body.return_cached_tokens_details,
        )
        if body.stream:
            return EventStream(chunks(envelope, form, deltas), ping_s=self.ping_s)
        answers = await unless_disconnected(
            request.scope, request.receive, collect(deltas, len(requests))
        )
        best = best_of(answers, body.computed, body.choices)
        choices = [form.whole(i, answers[i]) | {"index": n} for n, i in enumerate(best)]
        return JsonReply(envelope.whole(choices, answers))

    def _requests(
        self,
        ids: Sequence[int],
        body: CompletionBody,
        model: ModelInfo,
        labels: RequestLabels,
        grammar: Grammar | None,
    ) -> list[GenerateRequest]:
        # max_tokens must be in range before it is compared with the context.
        sampling = _sampling(body, model, grammar)
        self.text.check_sampling(sampling, model)
        room = room_for_answer(ids, sampling.max_tokens, model)
        if room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        return make_requests(ids, sampling, body.computed, labels)


def best_of(answers: Sequence[WholeAnswer], computed: int, wanted: int) -> list[int]:
    """Return the places of the `wanted` best of each prompt's `computed` answers, best first.

    The best has the highest mean log probability of its tokens, as in OpenAI's API.
    """
    if computed == wanted:
        return list(range(len(answers)))

    def score(place: int) -> float:
        found = [entry.logprob or 0.0 for entry in answers[place].logprobs]
        return sum(found) / max(1, len(found))

    groups = (range(at, at + computed) for at in range(0, len(answers), computed))
    return [i for group in groups for i in sorted(group, key=score, reverse=True)[:wanted]]


def _sampling(body: CompletionBody, model: ModelInfo, grammar: Grammar | None) -> SamplingParams:
    scores_echo = bool(body.echo) and body.logprobs is not None
    top, names = body.prompt_logprobs, {}
    if top is None and scores_echo:
        top, names = body.logprobs, {"prompt_logprobs": "logprobs"}
    return body.sampling(
        body.answer_tokens,
        model,
        names,
        grammar=grammar,
        logprobs=0 if body.logprobs is None and body.computed > body.choices else body.logprobs,
        prompt_logprobs_start=None if top is None else 0,
        prompt_logprobs=top or 0,
    )
