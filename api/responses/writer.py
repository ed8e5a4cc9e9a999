"""A reply of `/v1/responses` as it is made: its items, and the events that tell of them.

The order of the events is that of OpenAI's reference, "Streaming events" of the Responses API.
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any

from baton.api.openai.chat_turn import TurnParts
from baton.api.replies import synthetic_json
from baton.api.requests import new_request_id
from baton.api.responses.body import ResponsesBody
from baton.api.responses.sealed_reasoning import seal
from baton.api.responses.tools import CUSTOM_INPUT, ClientTool
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished, FinishReason
from baton.core.logprobs import TokenLogprob
from baton.text.conversation import CallArguments
from baton.text.reply_parser import PartKind, TextPart
from baton.text.token_table import TokenTable
from baton.text.tool_calls import CallMore, ToolCall

EventJson = dict[str, Any]
_EVENT = {PartKind.CONTENT: "response.output_text", PartKind.REASONING: "response.reasoning_text"}


class ResponseWriter:
    """Takes the parts of one answer, and gives the events. `response` is the reply so far."""

    def __init__(self, body: ResponsesBody, model_id: str, table: TokenTable) -> None:
        self.response = _response(body, model_id)
        self._want_logprobs = body.wants_logprobs
        self._seals = body.wants_sealed_reasoning
        self._sums_up = body.wants_summary
        self._tools = {tool.name: tool for tool in body.tools or ()}
        self._table = table
        self._sequence = 0
        self._open: PartKind | None = None  # the kind of the item that grows
        self._calling = False  # a call grows
        self._whole = False  # its arguments are all there
        self._custom = ""  # the arguments of a custom tool's call that grows
        self._logprobs: list[EventJson] = []  # of tokens whose text is not out yet

    def begin(self) -> Iterator[EventJson]:
        """Yield the events before all others, unless they were."""
        if self._sequence:
            return
        yield self._event("response.created", response=self._snapshot())
        yield self._event("response.in_progress", response=self._snapshot())

    def push(self, parts: TurnParts) -> Iterator[EventJson]:
        """Yield the events of what a delta adds."""
        if self._want_logprobs:
            self._logprobs += [self._entry(entry) for entry in parts.logprobs]
        for part in parts.parts:
            if isinstance(part, TextPart):
                yield from self._text(part)
            elif isinstance(part, CallMore):
                yield from self._more(part)
            else:
                yield from self._close()
                yield from self._call(part)
        if parts.finished is not None:
            yield from self._finish(parts.finished)

    def fail(self, error: ApiError) -> Iterator[EventJson]:
        """Yield the events of an answer that failed on its way, maybe before its first token."""
        yield from self.begin()
        busy = error.code is ErrorCode.OVERLOADED
        code = "rate_limit_exceeded" if busy else "server_error"
        self.response["status"] = "failed"
        self.response["error"] = {"code": code, "message": error.message}
        yield self._event("response.failed", response=self._snapshot())

    def _finish(self, finished: Finished) -> Iterator[EventJson]:
        cut = finished.end.reason is FinishReason.LENGTH
        if not self._items:  # an answer without any text is an empty message
            yield from self._begin(PartKind.CONTENT)
        yield from self._close("incomplete" if cut else "completed")
        usage = finished.usage
        self.response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        self.response |= synthetic_json(finished)
        status = "incomplete" if cut else "completed"
        self.response["status"] = status
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["completed_at"] = int(time.time())
        yield self._event(f"response.{status}", response=self._snapshot())

    @property
    def _items(self) -> list[EventJson]:
        items: list[EventJson] = self.response["output"]
        return items

    def _text(self, part: TextPart) -> Iterator[EventJson]:
        if self._open is not part.kind:
            yield from self._close()
            yield from self._begin(part.kind)
        content = self._items[-1]["content"][0]
        content["text"] += part.text
        more: EventJson = {}
        if part.kind is PartKind.CONTENT:
            more["logprobs"], self._logprobs = self._logprobs, []
            content["logprobs"] += more["logprobs"]
        yield self._in_part(f"{_EVENT[part.kind]}.delta", delta=part.text, **more)
        if self._sums_up and part.kind is PartKind.REASONING:
            self._items[-1]["summary"][0]["text"] += part.text
            yield self._in_summary("text.delta", delta=part.text)

    def _begin(self, kind: PartKind) -> Iterator[EventJson]:
        self._open = kind
        item = _new_item(kind)
        self._items.append(item)
        yield self._of_item("response.output_item.added", item=dict(item))
        part = _new_part(kind)
        item["content"] = [part]
        yield self._in_part("response.content_part.added", part=_copy(part))
        if self._sums_up and kind is PartKind.REASONING:
            item["summary"] = [{"type": "summary_text", "text": ""}]
            yield self._in_summary("part.added", part=_copy(item["summary"][0]))

    def _close(self, status: str = "completed") -> Iterator[EventJson]:
        """Yield the events that end the item that grows, if there is one."""
        if self._calling:
            yield from self._end_call()
        if self._open is None:
            return
        item, kind = self._items[-1], self._open
        part = item["content"][0]
        more = {"logprobs": list(part["logprobs"])} if kind is PartKind.CONTENT else {}
        yield self._in_part(f"{_EVENT[kind]}.done", text=part["text"], **more)
        yield self._in_part("response.content_part.done", part=_copy(part))
        for summary in item.get("summary", ()):
            yield self._in_summary("text.done", text=summary["text"])
            yield self._in_summary("part.done", part=_copy(summary))
        item["status"] = status
        if kind is PartKind.REASONING and self._seals:
            item["encrypted_content"] = seal(part["text"])
        self._open = None
        yield self._of_item("response.output_item.done", item=_copy(item))

    def _call(self, call: ToolCall) -> Iterator[EventJson]:
        tool = self._tools.get(call.name)
        custom = tool is not None and tool.custom
        item = {
            "id": _new_id("ctc" if custom else "fc"),
            "type": "custom_tool_call" if custom else "function_call",
            "status": "in_progress",
            "call_id": _new_id("call"),
            "name": call.name if tool is None else tool.own_name,
            "input" if custom else "arguments": "",
        }
        if tool is not None and tool.namespace is not None:
            item["namespace"] = tool.namespace
        self._items.append(item)
        yield self._of_item("response.output_item.added", item=dict(item))
        self._calling, self._custom = True, ""
        yield from self._more(call)

    def _more(self, part: ToolCall | CallMore) -> Iterator[EventJson]:
        item = self._items[-1]
        self._whole = part.whole
        if "input" in item:  # a text in JSON, which is read at its end
            self._custom += part.arguments
            return
        item["arguments"] += part.arguments
        kind = "response.function_call_arguments.delta"
        yield self._of_item(kind, item_id=item["id"], delta=part.arguments)

    def _end_call(self) -> Iterator[EventJson]:
        self._calling = False
        item = self._items[-1]
        if "input" in item:
            yield from self._end_custom_call(item)
            return
        given = {"name": item["name"], "arguments": item["arguments"]}
        kind = "response.function_call_arguments.done"
        yield self._of_item(kind, item_id=item["id"], **given)
        item["status"] = "completed" if self._whole else "incomplete"
        yield self._of_item("response.output_item.done", item=dict(item))

    def _end_custom_call(self, item: EventJson) -> Iterator[EventJson]:
        given = CallArguments.of(self._custom).whole()
        item["input"] = str(given.get(CUSTOM_INPUT, self._custom))
        kind = "response.custom_tool_call_input"
        yield self._of_item(f"{kind}.delta", item_id=item["id"], delta=item["input"])
        yield self._of_item(f"{kind}.done", item_id=item["id"], input=item["input"])
        item["status"] = "completed" if self._whole else "incomplete"
        yield self._of_item("response.output_item.done", item=dict(item))

    def _in_part(self, kind: str, **more: Any) -> EventJson:
        return self._of_item(kind, item_id=self._items[-1]["id"], content_index=0, **more)

    def _in_summary(self, kind: str, **more: Any) -> EventJson:
        """Return an event of the summary of the reasoning that grows, which is its whole text:
        clients that ask for a summary show nothing else."""
        kind = f"response.reasoning_summary_{kind}"
        return self._of_item(kind, item_id=self._items[-1]["id"], summary_index=0, **more)

    def _of_item(self, kind: str, **more: Any) -> EventJson:
        return self._event(kind, output_index=len(self._items) - 1, **more)

    def _event(self, kind: str, **more: Any) -> EventJson:
        self._sequence += 1
        return {"type": kind, "sequence_number": self._sequence - 1, **more}

    def _snapshot(self) -> EventJson:
        return {**self.response, "output": [_copy(item) for item in self._items]}

    def _entry(self, entry: TokenLogprob) -> EventJson:
        top = zip(entry.top_ids, entry.top_logprobs, strict=True)
        own = self._token(entry.token_id, entry.logprob)
        return own | {"top_logprobs": [self._token(token, logprob) for token, logprob in top]}

    def _token(self, token_id: int, logprob: float | None) -> EventJson:
        return {
            "token": self._table.text(token_id),
            "logprob": logprob,
            "bytes": list(self._table.raw_bytes(token_id)),
        }


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"


def _new_item(kind: PartKind) -> EventJson:
    if kind is PartKind.REASONING:
        return {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []} | {
            "status": "in_progress"
        }
    message = {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []}
    return message | {"status": "in_progress"}


def _new_part(kind: PartKind) -> EventJson:
    if kind is PartKind.REASONING:
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _shown_tool(tool: ClientTool) -> EventJson:
    """Return a tool as OpenAI's reply has it."""
    if tool.custom:
        return {"type": "custom", **tool.sent, "name": tool.name}
    given = dict.fromkeys(("description", "parameters", "strict")) | dict(tool.sent)
    return given | {"type": "function", "name": tool.name}


def _copy(item: EventJson) -> EventJson:
    """Return an item or a part that later parts of the answer do not change."""
    copied = {name: list(each) if isinstance(each, list) else each for name, each in item.items()}
    for name in ("content", "summary"):
        if isinstance(copied.get(name), list):
            copied[name] = [_copy(part) for part in copied[name]]
    return copied


def _response(body: ResponsesBody, model_id: str) -> EventJson:
    """Return a reply without items, with what the request said."""
    form = None if body.text is None else body.text.format
    text = {"type": "text"} if form is None else form.model_dump(exclude_unset=True, by_alias=True)
    reasoning = body.reasoning
    return {
        "id": f"resp_{new_request_id()}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": model_id,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": text},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [_shown_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }
