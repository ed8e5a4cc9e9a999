"""The body of `/v1/chat/completions`."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

from baton.api.schema import SamplingBody, refused

MAX_TOP_LOGPROBS = 20


def _text_content(value: Any) -> Any:
    """OpenAI's list of text parts is one text; templates of text models expect a string."""
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


class Message(BaseModel):
    """Other fields (`name`, `tool_call_id`, ...) reach the template as they came."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: str
    content: Annotated[str | None, BeforeValidator(_text_content)] = None


class ToolFunction(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    name: str
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["function"]
    function: ToolFunction


class ChatBody(SamplingBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    separate_reasoning: bool = True  # False: thoughts stay in the content, with their marks
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise refused("messages", "messages is empty; expected at least one message")
        self._check_logprobs()
        if self.functions:
            raise refused("functions", "functions are not supported; give them as tools")
        if self.tool_choice not in (None, "auto", "none"):
            raise refused(
                "tool_choice", f"tool_choice is {self.tool_choice!r}; expected 'auto' or 'none'"
            )
        if self.offered_tools is not None and self.wanted_grammar()[0] is not None:
            raise refused(
                "tools",
                f"tools and {self.wanted_grammar()[1]} are given; an answer is one or the other",
            )

    def _check_logprobs(self) -> None:
        if self.top_logprobs is None:
            return
        if not self.logprobs:
            raise refused("top_logprobs", "top_logprobs needs logprobs to be true")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise refused(
                "top_logprobs",
                f"top_logprobs is {self.top_logprobs}; expected 0 to {MAX_TOP_LOGPROBS}",
            )

    @property
    def answer_tokens(self) -> int | None:
        """None: as many as the context leaves."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def answer_tokens_field(self) -> str:
        """Which of the two spellings set the bound."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def offered_tools(self) -> list[dict[str, Any]] | None:
        """As templates read them; None where the model may call none."""
        if not self.tools or self.tool_choice == "none":
            return None
        return [tool.model_dump(exclude_unset=True) for tool in self.tools]

    def template_messages(self) -> list[dict[str, Any]]:
        """As templates read them; fields that were left out stay out."""
        return [_template_message(message) for message in self.messages]


def _template_message(message: Message) -> dict[str, Any]:
    """A call's arguments travel as JSON text; templates read the object."""
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
