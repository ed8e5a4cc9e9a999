"""The model's turn in a conversation: what all chat endpoints do before they format an answer."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import NamedTuple

from starlette.requests import Request

from baton.api.access.access import admit, owner_of
from baton.api.answers import AnswerDelta, stream_answers
from baton.api.backend import Backend, ModelInfo, ThinkingBudget
from baton.api.deadline import within
from baton.api.errors import refused
from baton.api.fields.ignored import keep_ignored
from baton.api.json_schemas import JsonSchemas
from baton.api.openai.chat_schema import ChatBody
from baton.api.openai.tool_choice import ToolRule
from baton.api.request_body import deadline_of, labels_of
from baton.api.requests import make_requests
from baton.api.text_service import ChatPrompt, TextService, served_model
from baton.api.truncation import truncated
from baton.core.finish import Finished
from baton.core.grammar import Grammar, GrammarKind
from baton.core.logprobs import TokenLogprob
from baton.core.sampling_params import SamplingParams
from baton.text.forced_calls import ForcedCallParser
from baton.text.reasoned_calls import ReasonedCallParser
from baton.text.reasoning import ReasoningState
from baton.text.reply_parser import ReplyParser, TextPart
from baton.text.tool_calls import CallMore, ToolCall, parameters_of

AnswerParser = ReplyParser | ForcedCallParser | ReasonedCallParser
AnswerPart = TextPart | ToolCall | CallMore


class TurnParts(NamedTuple):
    """The parts that one delta adds to an answer."""

    parts: list[AnswerPart]
    logprobs: tuple[TokenLogprob, ...]  # those of reasoning are not among them
    finished: Finished | None  # set on the last


@dataclass(frozen=True)
class ChatTurn:
    """The answers to one conversation, about to be made."""

    model: ModelInfo
    request_id: str  # of the first answer
    prompt_tokens: int
    parsers: list[AnswerParser]  # one for each answer
    deltas: AsyncGenerator[AnswerDelta, None]
    parallel_calls: bool  # False: the answer has at most its first tool call

    async def parts(self) -> AsyncGenerator[TurnParts, None]:
        """Yield the parts of the only answer, an entry for each delta, maybe an empty one."""
        (parser,) = self.parsers
        calls = 0
        async with aclosing(self.deltas):
            async for delta in self.deltas:
                found: list[AnswerPart] = [*parser.push(delta.text)]
                if delta.finished is not None:
                    found += parser.finish()
                kept: list[AnswerPart] = []
                for part in found:
                    calls += isinstance(part, ToolCall)
                    if self.parallel_calls or calls <= 1 or isinstance(part, TextPart):
                        kept.append(part)
                yield TurnParts(kept, delta.logprobs[delta.reasoning :], delta.finished)


@dataclass(frozen=True)
class ChatTurns:
    """Begins turns."""

    backend: Backend
    text: TextService

    async def begin(
        self, request: Request, body: ChatBody, *, thinking_tokens: int | None = None
    ) -> ChatTurn:
        """Return a turn whose answers begin when its deltas are read. Raises `ApiError`.

        thinking_tokens: the most of the reasoning; None: no bound of its own.
        """
        deadline = deadline_of(request, body.timeout)
        body.check()
        rule = body.tool_rule()
        model = served_model(body.model, await self.backend.models())
        async with within(deadline):
            grammar, field = None, ""
            if body.constrained or (rule is not None and rule.forced):
                grammar, field = await self.text.usable_grammar(
                    lambda schemas: self._grammar(body, rule, schemas), request.scope
                )
            prompt = await body.encode(self.text, rule, model, owner_of(request))
            whole = await self.text.reasoned_grammar(grammar, field, prompt.thinking)
            predicted = tuple(await body.predicted(self.text, model))
        ids = truncated(prompt.ids, body, model, body.answer_tokens)
        room = body.room(ids, model)
        if body.answer_tokens is not None and room < body.answer_tokens:
            keep_ignored(request.scope, [body.answer_tokens_field])
        sampling = _sampling(body, room, model, whole)
        self.text.check_sampling(sampling, model)
        requests = make_requests(ids, sampling, body.choices, labels_of(request, body, deadline))
        if predicted:
            requests = [replace(each, prediction_ids=predicted) for each in requests]
        if thinking_tokens is not None:
            if self.text.reasoning is None:
                keep_ignored(request.scope, ["thinking.budget_tokens"])
            budget = self._budget(thinking_tokens, prompt.thinking, grammar)
            requests = [replace(each, thinking=budget) for each in requests]
        admit(request, requests)
        parsers = [self._parser(body, rule, prompt) for _ in requests]
        marks = self.text.tokenizer.special_marks(parsers[0].marks)
        deltas = stream_answers(
            self.backend,
            self.text,
            requests,
            skip_special_tokens=body.skip_special_tokens,
            mark_ids=frozenset(marks.values()),
            meters=self.text.reasoning_meters(
                prompt.thinking, len(requests), body.skip_special_tokens
            ),
        )
        return ChatTurn(
            model, requests[0].request_id, len(ids), parsers, deltas, body.parallel_tool_calls
        )

    def _budget(
        self, tokens: int, thinking: ReasoningState, grammar: Grammar | None
    ) -> ThinkingBudget | None:
        """Return the bound on an answer's reasoning; None where it can have none.

        grammar: of the answer behind its reasoning
        """
        form = self.text.reasoning
        if form is None or thinking is ReasoningState.CLOSED:
            return None
        closing = self.text.tokenizer.encode(f"\n{form.end}\n\n", add_special_tokens=False)
        return ThinkingBudget(tokens, form, thinking, tuple(closing), grammar)

    def _grammar(
        self, body: ChatBody, rule: ToolRule | None, schemas: JsonSchemas
    ) -> tuple[Grammar | None, str]:
        """Return the grammar of the answer, and the field to name if it cannot be used."""
        wanted, field = body.wanted_grammar(schemas)
        if rule is None or (wanted is None and not rule.forced):
            return wanted, field
        if wanted is not None and wanted.kind is not GrammarKind.JSON_SCHEMA:
            raise refused("tools", f"tools and {field} are given; an answer is one or the other")
        if rule.forced:
            return rule.calls_grammar(schemas), "tools"
        if wanted is None or self.text.tools is None:
            return wanted, field  # `encode` refuses the latter
        special = self.text.tokenizer.special_marks(self.text.tools.marks)
        return rule.grammar_beside(wanted, self.text.tools, special, schemas), field

    def _parser(self, body: ChatBody, rule: ToolRule | None, prompt: ChatPrompt) -> AnswerParser:
        forced = rule is not None and rule.forced
        separate = body.separate_reasoning or forced
        parser = ReplyParser(
            self.text.reasoning if separate else None,
            self.text.tools if rule is not None and not forced else None,
            thinking=prompt.thinking,
            parameters=parameters_of(rule.offered if rule is not None else []),
        )
        if body.skip_special_tokens:
            parser.hide(self.text.tokenizer.special_marks(parser.marks))
        if not forced:
            return parser
        if self.text.reasoning is None or prompt.thinking is ReasoningState.CLOSED:
            return ForcedCallParser()
        return ReasonedCallParser(parser, separate=body.separate_reasoning)


def _sampling(
    body: ChatBody, max_tokens: int, model: ModelInfo, grammar: Grammar | None
) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    names = {"max_tokens": body.answer_tokens_field, "logprobs": "top_logprobs"}
    return body.sampling(
        max_tokens,
        model,
        names,
        grammar=grammar,
        logprobs=logprobs,
        prompt_logprobs_start=None if body.prompt_logprobs is None else 0,
        prompt_logprobs=body.prompt_logprobs or 0,
    )
