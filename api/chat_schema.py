"""The body of `POST /v1/chat/completions`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from baton.api.errors import refused
from baton.api.field_table import FieldPlace
from baton.api.schema import SamplingBody
from baton.api.tool_choice import ToolRule, tool_rule


def _text_content(value: Any) -> Any:
    """Join OpenAI's list of text parts, because the templates of text models expect a string."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError("expected a string or a list of text parts")
    texts = []
    for part in value:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise ValueError("expected only parts of type 'text'; this server reads no others")
        texts.append(text)
    return "".join(texts)


_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_CONTENT = {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": _PART}]}


class Message(BaseModel):
    """A chat message. Other fields (`name`, `tool_call_id`, ...) reach the template unchanged."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: Annotated[str | None, BeforeValidator(_text_content), WithJsonSchema(_CONTENT)] = None


class ToolFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: str
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["function"]
    function: ToolFunction


class ChatBody(SamplingBody):
    """The fields of a chat request."""

    place: ClassVar[FieldPlace | None] = FieldPlace.CHAT

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    separate_reasoning: bool = True  # False: the reasoning stays in the content, with its marks
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None  # None: unless the last message is continued
    continue_final_message: bool = False
    add_special_tokens: bool = False  # the template has them

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise refused("messages", "messages is empty; expected at least one message")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "top_logprobs needs logprobs to be true")
        if self.continue_final_message and self.add_generation_prompt:
            raise refused(
                "add_generation_prompt",
                "add_generation_prompt begins a message, and continue_final_message goes on with "
                "the last one; give one of them",
            )

    @property
    def answer_tokens(self) -> int | None:
        """Return the limit of answer tokens; None is as many as the context leaves."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def answer_tokens_field(self) -> str:
        """Return the name of the field that set the limit of answer tokens."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def tool_rule(self) -> ToolRule | None:
        """Return what the answer may call; None: no tool. Raises `ApiError`."""
        tools = [tool.model_dump(exclude_unset=True) for tool in self.tools or ()]
        return tool_rule(tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def generation_prompt(self) -> bool:
        """True if the prompt ends with the beginning of a new message of the model."""
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    def variables(self) -> Mapping[str, Any]:
        """Return what the template is given besides messages and tools."""
        found: dict[str, Any] = {}
        if self.documents is not None:
            found["documents"] = self.documents
        if self.reasoning_effort is not None:
            found["reasoning_effort"] = self.reasoning_effort
            # The names by which templates turn thinking off: DeepSeek's, and most others'.
            found["thinking"] = found["enable_thinking"] = self.reasoning_effort != "none"
        return found | (self.chat_template_kwargs or {})

    def template_messages(self) -> list[dict[str, Any]]:
        """Return the messages as templates read them. Fields that were left out stay out."""
        return [template_message(message) for message in self.messages]


def template_message(message: Message) -> dict[str, Any]:
    """Return a message for the template, with the arguments of tool calls parsed from JSON text."""
    found = message.model_dump(exclude_unset=True)
    calls = found.get("tool_calls")
    if isinstance(calls, list):
        found["tool_calls"] = [_with_object(call) for call in calls]
    return found


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError) as error:
        raise refused("messages", f"the arguments of a tool call are no JSON: {error}") from error
    return call | {"function": function | {"arguments": arguments}}
