"""The choices of `/v1/chat/completions`: messages, and OpenAI's newer log probabilities."""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.api.answers import AnswerDelta, WholeAnswer
from baton.api.openai.chat_turn import AnswerParser, AnswerPart
from baton.api.replies import GOES_ON, ending
from baton.core.finish import Finished, FinishReason
from baton.core.logprobs import TokenLogprob
from baton.text.reply_parser import TextPart
from baton.text.token_table import TokenTable
from baton.text.tool_calls import CallMore, ToolCall


@dataclass(frozen=True)
class ChatChoices:
    """The formatter of one request, with one choice for each of `parsers`."""

    table: TokenTable
    parsers: Sequence[AnswerParser]
    want_logprobs: bool
    parallel_calls: bool = True  # False: each choice has at most its first tool call
    separate_reasoning: bool = True  # False: it is content, and so are its log probabilities
    _calls: Counter[int] = field(default_factory=Counter)  # tool calls so far, by choice
    _whole: set[int] = field(default_factory=set)  # choices that have a whole call
    _dropping: set[int] = field(default_factory=set)  # choices whose last call is not shown

    def opening(self) -> Iterator[dict[str, Any]]:
        """Yield a chunk for each choice that names the role, before any text."""
        for index in range(len(self.parsers)):
            yield self._choice(index, {"role": "assistant", "content": ""}, None)

    def choices(self, delta: AnswerDelta) -> list[dict[str, Any]]:
        """Return the choices of one delta. Tokens without final text make one only for log
        probabilities.
        """
        index = delta.index
        entries = self._logprobs(delta.logprobs, delta.reasoning) if delta.logprobs else None
        parts: list[AnswerPart] = [*self.parsers[index].push(delta.text)]
        if delta.finished is not None:
            parts += self.parsers[index].finish()
        found = []
        for part in parts:
            if (message := self._delta(index, part)) is not None:
                found.append(self._choice(index, message, entries))
                entries = None
        if entries:
            found.append(self._choice(index, {"content": ""}, entries))
        if delta.finished is not None:
            found.append(self._choice(index, {}, None, delta.finished))
        return found

    def whole(self, index: int, answer: WholeAnswer) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        parser = self.parsers[index]
        parts: list[AnswerPart] = [*parser.push(answer.text), *parser.finish()]
        deltas = [each for part in parts if (each := self._delta(index, part)) is not None]
        thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
        content = "".join(delta.get("content", "") for delta in deltas)
        calls = _joined(call for delta in deltas for call in delta.get("tool_calls", ()))
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [_without_index(call) for call in calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs, answer.finished.reasoning_tokens),
        } | ending(answer.finished, self._reason(index, answer.finished))

    def _wanted(self, index: int, part: ToolCall | CallMore) -> bool:
        if isinstance(part, CallMore):
            return index not in self._dropping
        if self.parallel_calls or not self._calls[index]:
            return True
        self._dropping.add(index)
        return False

    def _delta(self, index: int, part: AnswerPart) -> dict[str, Any] | None:
        """Return the message part of a chunk; None: it is of a call that is not shown. Only the
        first of a call has its name and id."""
        if isinstance(part, TextPart):
            return {part.kind._value_: part.text}
        if not self._wanted(index, part):
            return None
        if part.whole:
            self._whole.add(index)
        if isinstance(part, CallMore):
            more = {"arguments": part.arguments}
            return {"tool_calls": [{"index": self._calls[index] - 1, "function": more}]}
        number = self._calls[index]
        self._calls[index] += 1
        function = {"name": part.name, "arguments": part.arguments}
        call_id = f"call_{secrets.token_hex(12)}"
        call = {"index": number, "id": call_id, "type": "function", "function": function}
        return {"tool_calls": [call]}

    def _reason(self, index: int, finished: Finished) -> str:
        if index in self._whole and finished.end.reason is FinishReason.STOP:
            return "tool_calls"
        return finished.end.reason.value

    def _choice(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        finished: Finished | None = None,
    ) -> dict[str, Any]:
        end = GOES_ON if finished is None else ending(finished, self._reason(index, finished))
        return {"index": index, "delta": delta, "logprobs": logprobs, **end}

    def _logprobs(self, entries: Sequence[TokenLogprob], thought: int) -> dict[str, Any] | None:
        """Return the log probabilities of tokens, of which the first ones are reasoning's; None if
        nobody asked."""
        if not self.want_logprobs:
            return None
        shown = [self._entry(entry) for entry in entries]
        thought = thought if self.separate_reasoning else 0
        found: dict[str, Any] = {"content": shown[thought:], "refusal": None}
        return found | ({"reasoning_content": shown[:thought]} if thought else {})

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = zip(entry.top_ids, entry.top_logprobs, strict=True)
        own = self._token(entry.token_id, entry.logprob)
        return own | {"top_logprobs": [self._token(token, logprob) for token, logprob in top]}

    def _token(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self.table.text(token_id),
            "logprob": logprob,
            "bytes": list(self.table.raw_bytes(token_id)),
        }


def _joined(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls of which `parts` are the chunks."""
    calls: list[dict[str, Any]] = []
    for part in parts:
        if "id" in part:
            calls.append(part)
        else:
            calls[-1]["function"]["arguments"] += part["function"]["arguments"]
    return calls


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call without its number, which only streams carry."""
    return {name: value for name, value in call.items() if name != "index"}
