"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo

from baton.api.anthropic.conversation import conversation_of
from baton.api.anthropic.past_blocks import read_blocks, read_system
from baton.api.backend import ModelInfo
from baton.api.body import Body, ListOf, RequestBody
from baton.api.errors import refused, shorten
from baton.api.fields.field_table import DEADLINE, RANK, SHARERS, TURN, FieldPlace, label, works
from baton.api.fields.request_fields import FieldCheck, UnknownFields
from baton.api.openai.chat_schema import ChatBody
from baton.api.prepared import Prepared
from baton.api.schema import make_body
from baton.api.text_service import TextService


class MessagesTool(Body):
    """A tool of the client's. Other types are Anthropic's own services."""

    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_TOOL

    name: Annotated[str, works("the chat template")]
    type: Annotated[str | None, works("custom; other types are Anthropic's services")] = (
        None  # None, "custom"
    )
    description: Annotated[str | None, works("the chat template")] = None
    input_schema: Annotated[dict[str, Any] | None, works("the chat template")] = None
    strict: Annotated[bool | None, works("what cannot be enforced is refused")] = None
    cache_control: Annotated[dict[str, Any] | None, label("prefixes are cached by themselves")] = (
        None
    )
    eager_input_streaming: Annotated[bool | None, label("changes no answer")] = None
    defer_loading: Annotated[bool | None, label("changes no answer")] = None
    input_examples: Annotated[list[Any] | None, label("changes no answer")] = None
    allowed_callers: Annotated[list[Any] | None, label("changes no answer")] = None


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

    type: Annotated[Literal["auto", "any", "tool", "none"], works("a grammar that forces calls")]
    name: Annotated[str | None, works("a grammar that forces calls")] = None
    disable_parallel_tool_use: Annotated[
        bool, works("true: the answer has at most its first call")
    ] = False


class OutputFormat(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_FORMAT

    type: Annotated[Literal["json_schema"], works("a grammar")]
    content: Annotated[dict[str, Any], works("a grammar")] = Field(alias="schema")


class OutputConfig(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_OUTPUT

    format: Annotated[OutputFormat | None, works("a grammar")] = None
    effort: Annotated[str | None, label("changes no answer")] = None


class Thinking(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_THINKING

    type: Annotated[
        Literal["enabled", "disabled", "adaptive"], works("variable of the chat template")
    ]
    budget_tokens: Annotated[
        int | None, works("most tokens of the reasoning, where the template has marks of it")
    ] = None
    display: Annotated[str | None, label("changes no answer")] = None


class MessagesMetadata(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.MESSAGES_METADATA

    user_id: Annotated[str | None, works("the id that /abort_request takes")] = None


class ConversationBody(RequestBody):
    """The fields that the prompt is made of."""

    place: ClassVar[FieldPlace | None] = FieldPlace.COUNT_TOKENS

    model: Annotated[str | None, works("the served name; default and an empty one are any")] = None
    messages: Annotated[
        Annotated[ListOf[dict[str, Any]], BeforeValidator(read_blocks)], works("the conversation")
    ]
    system: Annotated[
        Annotated[str | ListOf[dict[str, Any]] | None, BeforeValidator(read_system)],
        works("the conversation"),
    ] = None
    tools: Annotated[
        Annotated[ListOf[MessagesTool] | None, BeforeValidator(_clients_tools)],
        works("for the chat template; calls are found in the answer"),
    ] = None
    tool_choice: Annotated[MessagesToolChoice | None, works("a grammar that forces calls")] = None
    thinking: Annotated[Thinking | None, works("variable of the chat template")] = None
    output_config: Annotated[OutputConfig | None, works("a grammar")] = None
    output_format: Annotated[OutputFormat | None, works("a grammar")] = (
        None  # the older name of output_config.format
    )
    cache_control: Annotated[dict[str, Any] | None, label("prefixes are cached by themselves")] = (
        None
    )
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, works("variables of the chat template")
    ] = None

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

    max_tokens: Annotated[int, works("most tokens of an answer")]
    stream: Annotated[bool | None, works("the reply comes in parts")] = None
    stop_sequences: Annotated[ListOf[str] | None, works("ends the answer")] = None
    temperature: Annotated[float | None, works("sampling")] = None
    top_p: Annotated[float | None, works("sampling")] = None
    top_k: Annotated[int | None, works("sampling")] = None
    metadata: Annotated[
        MessagesMetadata | None,
        works("its user_id is the id that /abort_request takes", carried=True),
    ] = None
    service_tier: Annotated[str | None, label("changes no answer", carried=True)] = None

    min_p: Annotated[float | None, works("sampling")] = None
    seed: Annotated[int | None, works("the noise of sampling")] = None
    priority: Annotated[int | None, TURN] = None
    timeout: Annotated[float | None, DEADLINE] = None
    routed_dp_rank: Annotated[int | None, RANK] = None
    cache_salt: Annotated[str | None, SHARERS] = None

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
