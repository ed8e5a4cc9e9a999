"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo

from baton.api.anthropic.conversation import conversation_of
from baton.api.anthropic.past_blocks import read_blocks, read_system
from baton.api.backend import ModelInfo
from baton.api.body import Body, ListOf, RequestBody
from baton.api.errors import refused, shorten
from baton.api.fields.field_table import FieldPlace
from baton.api.fields.request_fields import FieldCheck, UnknownFields
from baton.api.openai.chat_schema import ChatBody
from baton.api.prepared import Prepared
from baton.api.schema import make_body
from baton.api.text_service import TextService


class MessagesTool(Body):
    """A tool of the client's. Other types are Anthropic's own services."""

    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_TOOL

    name: str
    type: str | None = None  # None, "custom"
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None
    defer_loading: bool | None = None
    input_examples: list[Any] | None = None
    allowed_callers: list[Any] | None = None


def _clients_tools(given: object, info: ValidationInfo) -> object:
    """Leave out the tools that only Anthropic knows or runs, or refuse them. They have fields of
    their own."""
    check = info.context or FieldCheck()
    if not isinstance(given, list):
        return given
    kept = []
    for number, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is None or kind == "custom":
            kept.append(tool)
        elif check.policy is UnknownFields.REFUSE or not isinstance(kind, str):
            raise refused(
                f"tools.{number}.type",
                f"tools.{number} has type {shorten(repr(kind))}; expected 'custom': this server "
                "runs no tools of its own",
            )
        else:
            check.leave_out(f"tools[{kind}]")
    return kept


class MessagesToolChoice(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_CHOICE

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_FORMAT

    type: Literal["json_schema"]
    content: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_OUTPUT

    format: OutputFormat | None = None
    effort: str | None = None


class Thinking(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_THINKING

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: str | None = None


class MessagesMetadata(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_METADATA

    user_id: str | None = None


class ConversationBody(RequestBody):
    """The fields that the prompt is made of."""

    place: ClassVar[FieldPlace | None] = FieldPlace.COUNT_TOKENS

    model: str | None = None
    messages: Annotated[ListOf[dict[str, Any]], BeforeValidator(read_blocks)]
    system: Annotated[str | ListOf[dict[str, Any]] | None, BeforeValidator(read_system)] = None
    tools: Annotated[ListOf[MessagesTool] | None, BeforeValidator(_clients_tools)] = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older name of output_config.format
    cache_control: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat_body(self, **more: Any) -> ChatBody:
        """Return the same conversation as a body of chat completions. Raises `ApiError`.

        more: further fields of that body.
        """
        messages = conversation_of(self.system, self.messages)
        last = messages[-1] if messages else None
        choice = self.tool_choice
        parallel = None if choice is None else not choice.disable_parallel_tool_use
        return make_body(
            ChatBody,
            {
                "model": self.model,
                "messages": messages,
                "continue_final_message": last is not None and last.can_go_on,
                "tools": [_chat_tool(tool) for tool in self.tools or ()] or None,
                "tool_choice": _chat_choice(choice),
                "parallel_tool_calls": parallel,
                "response_format": self._format(),
                "chat_template_kwargs": self._variables(),
                **more,
            },
        ).with_prepared(self.prepared)

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its messages, and the prompt's token ids. Raises `ApiError`."""
        _, prepared = await self.chat_body().prepare(text, models, owner)
        none = {
            "messages": [{"role": "user", "content": ""}],
            "system": None,
            "chat_template_kwargs": None,
        }
        return self.model_copy(update=none), prepared

    def _format(self) -> dict[str, Any] | None:
        form = None if self.output_config is None else self.output_config.format
        form = form or self.output_format
        if form is None:
            return None
        return {"type": "json_schema", "json_schema": {"schema": form.content}}

    def _variables(self) -> dict[str, Any] | None:
        """Return the template's variables. Families name the switch of their thinking
        differently."""
        if self.thinking is None:
            return self.chat_template_kwargs
        on = self.thinking.type != "disabled"
        return {"enable_thinking": on, "thinking": on} | (self.chat_template_kwargs or {})


class MessagesBody(ConversationBody):
    """Anthropic's fields, then Baton's own of the other endpoints."""

    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES

    max_tokens: int
    stream: bool | None = None
    stop_sequences: ListOf[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: MessagesMetadata | None = None
    service_tier: str | None = None

    min_p: float | None = None
    seed: int | None = None
    priority: int | None = None  # a larger value goes first; None: 0
    timeout: float | None = None  # seconds from here to the end of the answer
    routed_dp_rank: int | None = None
    cache_salt: str | None = None  # only requests of the same salt share cached prefixes

    def thinking_tokens(self) -> int | None:
        """Return the most tokens of reasoning; None: as many as the answer may have. Raises
        `ApiError`."""
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is not None and budget < 1:
            raise refused(
                "thinking.budget_tokens",
                f"thinking.budget_tokens is {budget}; expected 1 or more",
            )
        return None if budget is None or budget >= self.max_tokens else budget

    def whole_chat_body(self) -> ChatBody:
        """Return the same request to chat completions. Raises `ApiError`."""
        return self.chat_body(
            **{name: self.__dict__[name] for name in ALIKE},
            stop=list(self.stop_sequences or ()),
            user=None if self.metadata is None else self.metadata.user_id,
        )


ALIKE = tuple(
    name
    for name in MessagesBody.model_fields
    if name in ChatBody.model_fields
    and name not in ConversationBody.model_fields
    and name != "stream"  # of Anthropic's own events
)
"""The fields of a message's answer that chat completions call alike."""


def _chat_tool(tool: MessagesTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.input_schema is not None:
        function["parameters"] = tool.input_schema
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _chat_choice(choice: MessagesToolChoice | None) -> str | dict[str, Any] | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type
