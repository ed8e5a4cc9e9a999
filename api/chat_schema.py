"""The body of `/v1/chat/completions`."""

from typing import Annotated, Any

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


class ChatBody(SamplingBody):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise refused("messages", "messages is empty; expected at least one message")
        self._check_logprobs()
        for name, value in (("tools", self.tools), ("functions", self.functions)):
            if value:
                raise refused(name, f"{name} are not supported yet; leave the field out")

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

    def template_messages(self) -> list[dict[str, Any]]:
        """As templates read them; fields that were left out stay out."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]
