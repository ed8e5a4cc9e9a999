"""A reply of `/v1/messages` as it is made: its content blocks, and the events that tell of them.

The order of the events is that of Anthropic's reference, "Streaming messages".
"""

import json
import secrets
from collections.abc import Iterator
from typing import Any

from baton.api.openai.chat_turn import TurnParts
from baton.api.replies import synthetic_json
from baton.core.finish import Finished, FinishReason
from baton.text.reply_parser import PartKind, TextPart
from baton.text.tool_calls import CallMore, ToolCall

EventJson = dict[str, Any]


class MessageWriter:
    """Takes the parts of one answer, and gives the events. `message` is the reply so far."""

    def __init__(self, model_id: str, prompt_tokens: int) -> None:
        self.message: EventJson = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        self._open: PartKind | None = None  # the kind of the block that grows
        self._arguments: str | None = None  # of the call that grows
        self._whole = False  # they are all there

    def begin(self) -> Iterator[EventJson]:
        yield {"type": "message_start", "message": self.message | {"content": []}}
        yield {"type": "ping"}

    def push(self, parts: TurnParts) -> Iterator[EventJson]:
        """Yield the events of what a delta adds."""
        for part in parts.parts:
            if isinstance(part, TextPart):
                yield from self._text(part)
            elif isinstance(part, CallMore):
                yield self._more(part)
            else:
                yield from self._close()
                yield from self._call(part)
        if parts.finished is not None:
            yield from self._finish(parts.finished)

    @property
    def _blocks(self) -> list[EventJson]:
        blocks: list[EventJson] = self.message["content"]
        return blocks

    def _text(self, part: TextPart) -> Iterator[EventJson]:
        if self._open is not part.kind:
            yield from self._close()
            yield self._begin(_new_block(part.kind))
            self._open = part.kind
        word = "thinking" if part.kind is PartKind.REASONING else "text"
        self._blocks[-1][word] += part.text
        yield self._delta({"type": f"{word}_delta", word: part.text})

    def _call(self, call: ToolCall) -> Iterator[EventJson]:
        block = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": call.name}
        yield self._begin(block | {"input": {}})
        self._arguments = ""
        yield self._more(call)

    def _more(self, part: ToolCall | CallMore) -> EventJson:
        self._arguments = (self._arguments or "") + part.arguments
        self._whole = part.whole
        return self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def _begin(self, block: EventJson) -> EventJson:
        self._blocks.append(block)
        index = len(self._blocks) - 1
        return {"type": "content_block_start", "index": index, "content_block": dict(block)}

    def _close(self) -> Iterator[EventJson]:
        if self._open is PartKind.REASONING:  # clients send the block back with its signature
            yield self._delta({"type": "signature_delta", "signature": ""})
        if self._arguments is not None:
            block = self._blocks[-1]
            found = _parsed(self._arguments) if self._whole else None
            if found is None:
                self._blocks[-1] = _cut_call(block["name"], self._arguments)
            else:
                block["input"] = found
        if self._open is not None or self._arguments is not None:
            self._open = self._arguments = None
            yield self._stop()

    def _delta(self, delta: EventJson) -> EventJson:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _stop(self) -> EventJson:
        return {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _finish(self, finished: Finished) -> Iterator[EventJson]:
        yield from self._close()
        usage = finished.usage
        reason = self._reason(finished)
        sequence = finished.end.stop_string if reason == "stop_sequence" else None
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        used = {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            **synthetic_json(finished),
        }
        self.message |= ended | {"usage": used}
        yield {"type": "message_delta", "delta": ended, "usage": used}
        yield {"type": "message_stop"}

    def _reason(self, finished: Finished) -> str:
        if finished.end.reason is FinishReason.LENGTH:
            return "max_tokens"
        if any(block["type"] == "tool_use" for block in self._blocks):
            return "tool_use"
        return "stop_sequence" if finished.end.stop_string else "end_turn"


def _new_block(kind: PartKind) -> EventJson:
    if kind is PartKind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _parsed(arguments: str) -> dict[str, Any] | None:
    """Return a call's arguments; None if they are no object, or nested too deep."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _cut_call(name: str, arguments: str) -> EventJson:
    """Return a block for a call that is not whole. An `input` would be that of another call."""
    return {"type": "text", "text": f'{{"name": {json.dumps(name)}, "arguments": {arguments}'}
