"""A `Backend` that ends the reasoning of an answer once it has spent its budget of tokens."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from baton.api.backend import (
    Backend,
    GenerateRequest,
    ThinkingBudget,
    TokenEvent,
    WrappedBackend,
)
from baton.api.requests import new_request_id
from baton.core.finish import Finished
from baton.text.reasoning_meter import ReasoningMeter
from baton.text.tokenizer import Tokenizer


class BudgetedBackend(WrappedBackend):
    """`backend`, with budgets of reasoning.

    A request whose reasoning goes on beyond its budget is stopped, and goes on as another one,
    whose prompt ends with the reasoning so far and the mark of its end. Penalties for repetition
    count what came before as prompt. Most of that prompt is in the prefix cache.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer) -> None:
        super().__init__(backend)
        self._tokenizer = tokenizer

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent | Finished, None]:
        if request.thinking is None:
            return self._backend.generate(request)
        return self._limited(request, request.thinking)

    async def _limited(
        self, request: GenerateRequest, budget: ThinkingBudget
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        meter = ReasoningMeter(self._tokenizer, budget.form, budget.thinking)
        given: list[int] = []
        async with aclosing(self._backend.generate(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    yield event
                    return
                kept = _within(budget, meter, event.token_ids)
                given += event.token_ids[:kept]
                if _spent(budget, meter) and _room(request, given, budget) > 0:
                    yield event._replace(
                        token_ids=event.token_ids[:kept], logprobs=event.logprobs[:kept]
                    )
                    break
                given += event.token_ids[kept:]
                yield event
        await self._backend.cancel(request.request_id)
        yield TokenEvent(len(given), budget.closing_ids)
        async for event in self._rest(request, budget, given):
            yield event

    async def _rest(
        self, request: GenerateRequest, budget: ThinkingBudget, given: Sequence[int]
    ) -> AsyncGenerator[TokenEvent | Finished, None]:
        """Yield the events of the answer behind its reasoning."""
        before = (*given, *budget.closing_ids)
        sampling = request.sampling
        rest = replace(
            request,
            request_id=new_request_id(),
            client_id=request.client_id or request.request_id,  # an abort names either
            prompt_ids=(*request.prompt_ids, *before),
            sampling=replace(
                sampling,
                max_tokens=_room(request, given, budget),
                min_tokens=max(0, sampling.min_tokens - len(before)),
                grammar=budget.grammar,
            ),
            thinking=None,
        )
        async with aclosing(self._backend.generate(rest)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    used, prompt = event.usage, len(request.prompt_ids)
                    usage = replace(
                        used,
                        prompt_tokens=prompt,
                        completion_tokens=used.completion_tokens + len(before),
                        cached_tokens=min(used.cached_tokens, prompt),
                        cached_host_tokens=min(used.cached_host_tokens, prompt),
                        cached_file_tokens=min(used.cached_file_tokens, prompt),
                    )
                    yield replace(event, usage=usage)
                else:
                    yield event._replace(first_index=event.first_index + len(before))


def _room(request: GenerateRequest, given: Sequence[int], budget: ThinkingBudget) -> int:
    """Return the tokens that an answer may have behind its reasoning."""
    return request.sampling.max_tokens - len(given) - len(budget.closing_ids)


def _spent(budget: ThinkingBudget, meter: ReasoningMeter) -> bool:
    """Return True if the reasoning has used the budget and has not ended."""
    return meter.open and meter.tokens >= budget.tokens


def _within(budget: ThinkingBudget, meter: ReasoningMeter, ids: Sequence[int]) -> int:
    """Give the meter tokens until the budget is spent; return their number."""
    for number, token in enumerate(ids):
        if _spent(budget, meter):
            return number
        meter.push(token)
    return len(ids)
