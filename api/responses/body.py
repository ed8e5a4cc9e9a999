"""The body of `POST /v1/responses`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from baton.api.backend import ModelInfo
from baton.api.body import Body, ListOf, RequestBody
from baton.api.errors import refused
from baton.api.fields.field_table import DEADLINE, RANK, SHARERS, TURN, FieldPlace, label, works
from baton.api.openai.chat_schema import ChatBody
from baton.api.prepared import Prepared
from baton.api.responses.input_items import messages_of
from baton.api.responses.past_items import read_items
from baton.api.responses.tools import ClientTools, flat_name
from baton.api.schema import SamplingFields, make_body
from baton.api.text_service import TextService
from baton.core.errors import ApiError

_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
_FIELDS = {
    "messages": "input",
    "response_format": "text.format",
    "response_format.json_schema": "text.format.schema",
}
"""Fields of chat completions that have another name here."""


class TextFormat(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    content: dict[str, Any] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.RESPONSES_TEXT

    format: Annotated[TextFormat | None, works("a grammar")] = None
    verbosity: Annotated[str | None, label("changes no answer")] = None


class ReasoningOptions(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.RESPONSES_REASONING

    effort: Annotated[str | None, works("variable of the chat template")] = None
    summary: Annotated[
        str | None, works("any value but none: the reasoning is the item's summary too, whole")
    ] = None
    generate_summary: Annotated[
        str | None, works("any value but none: the reasoning is the item's summary too, whole")
    ] = None
    context: Annotated[str | None, label("changes no answer")] = None
    mode: Annotated[str | None, label("changes no answer")] = None

    @property
    def wants_summary(self) -> bool:
        """True if the reply is to have the reasoning as its summary. `none` is Codex's word."""
        return (self.summary or self.generate_summary or "none") != "none"


class ResponseStreamOptions(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.RESPONSES_STREAM

    include_obfuscation: Annotated[bool | None, label("changes no part")] = None


class _ResponseChat(ChatBody):
    """A body of chat completions whose errors name this endpoint's field."""

    @property
    def answer_tokens_field(self) -> str:
        return "max_output_tokens"


class ResponsesBody(SamplingFields, RequestBody):
    """OpenAI's fields, then Baton's own of the other endpoints.

    Large because each field is a name of OpenAI's API.
    """

    place: ClassVar[FieldPlace | None] = FieldPlace.RESPONSES

    model: Annotated[str | None, works("the served name; default and an empty one are any")] = None
    input: Annotated[
        Annotated[str | ListOf[dict[str, Any]], BeforeValidator(read_items)],
        works("the conversation"),
    ]
    instructions: Annotated[str | None, works("the conversation")] = None
    max_output_tokens: Annotated[int | None, works("most and fewest tokens of an answer")] = None
    stream: Annotated[bool | None, works("the reply comes in parts")] = None
    stream_options: Annotated[
        ResponseStreamOptions | None, works("what a stream has besides its parts")
    ] = None
    tools: Annotated[
        ClientTools | None, works("functions, for the chat template; calls are found in the answer")
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        works("which tools the template is given; a grammar that forces calls"),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, works("false: the answer has at most its first call")
    ] = None
    text: Annotated[TextOptions | None, works("a grammar")] = None
    reasoning: Annotated[ReasoningOptions | None, works("variable of the chat template")] = None
    top_logprobs: Annotated[int | None, works("alternatives at each token of the answer")] = None
    include: Annotated[
        ListOf[str] | None,
        works(
            "message.output_text.logprobs: log probabilities of the answer; "
            "reasoning.encrypted_content: the reasoning in a form that can be sent back"
        ),
    ] = None

    store: Annotated[bool | None, label("changes no answer", carried=True)] = None
    metadata: Annotated[dict[str, Any] | None, label("changes no answer", carried=True)] = None
    user: Annotated[str | None, label("the id that /abort_request takes", carried=True)] = None
    safety_identifier: Annotated[str | None, label("changes no answer", carried=True)] = None
    prompt_cache_key: Annotated[str | None, label("changes no answer", carried=True)] = None
    prompt_cache_retention: Annotated[str | None, label("changes no answer", carried=True)] = None
    prompt_cache_options: Annotated[
        dict[str, Any] | None, label("changes no answer", carried=True)
    ] = None
    service_tier: Annotated[str | None, label("changes no answer", carried=True)] = None
    max_tool_calls: Annotated[int | None, label("changes no answer", carried=True)] = None
    client_metadata: Annotated[dict[str, Any] | None, label("changes no answer")] = None

    min_tokens: Annotated[int, works("most and fewest tokens of an answer")] = 0
    priority: Annotated[int | None, TURN] = None
    timeout: Annotated[float | None, DEADLINE] = None
    routed_dp_rank: Annotated[int | None, RANK] = None
    cache_salt: Annotated[str | None, SHARERS] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, works("variables of the chat template")
    ] = None

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ()) or self.top_logprobs is not None

    @property
    def wants_sealed_reasoning(self) -> bool:
        return _SEALED in (self.include or ())

    @property
    def wants_summary(self) -> bool:
        return self.reasoning is not None and self.reasoning.wants_summary

    def chat_body(self) -> ChatBody:
        """Return the same request to chat completions. Raises `ApiError`."""
        own = (
            "min_tokens", "priority", "timeout", "routed_dp_rank", "cache_salt",
            "chat_template_kwargs",
        )  # fmt: skip
        fields: dict[str, Any] = {
            **{name: self.__dict__[name] for name in own},
            **{name: _as_sent(value) for name, value in self.given().items()},
            "model": self.model,
            "messages": messages_of(self.input, self.instructions),
            "max_completion_tokens": self.max_output_tokens,
            "user": self.user,
            "logprobs": self.wants_logprobs or None,
            "top_logprobs": self.top_logprobs,
            "tools": [tool.function() for tool in self.tools or ()] or None,
            "tool_choice": _chat_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "response_format": self._format(),
        }
        return make_body(_ResponseChat, fields).with_prepared(self.prepared)

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its input, and the prompt's token ids. Raises `ApiError`."""
        with own_fields():
            _, prepared = await self.chat_body().prepare(text, models, owner)
        return self.model_copy(update={"input": "", "chat_template_kwargs": None}), prepared

    def _format(self) -> dict[str, Any] | None:
        form = None if self.text is None else self.text.format
        if form is None or form.type == "text":
            return None
        if form.type == "json_object":
            return {"type": "json_object"}
        if form.content is None:
            raise refused("text.format.schema", "text.format: expected a schema")
        schema = {"name": form.name, "schema": form.content, "strict": form.strict}
        return {"type": "json_schema", "json_schema": schema}


@contextmanager
def own_fields() -> Iterator[None]:
    """Give errors about a body of chat completions this endpoint's names of fields."""
    try:
        yield
    except ApiError as error:
        error.param = _FIELDS.get(error.param or "", error.param)
        raise


def _as_sent(value: Any) -> Any:
    """Return a parsed value in the form that JSON has."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    return value


def _chat_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return a choice in the form of chat completions, which puts names one level deeper."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return {"type": "function", "function": {"name": _chosen_name(choice)}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        names = [_chosen_name(each) for each in choice["tools"]]
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        allowed = {"mode": choice.get("mode"), "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _chosen_name(tool: object) -> str | None:
    """Return the name that the model knows a tool by, from the client's choice of it."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(name, str):
        return None
    return flat_name(name, tool.get("namespace"))
