"""The body of `POST /v1/chat/completions`."""

from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from baton.api.backend import ModelInfo
from baton.api.body import ListOf
from baton.api.errors import refused
from baton.api.fields.field_table import FieldPlace, works
from baton.api.openai.messages import Messages
from baton.api.openai.prediction import Prediction
from baton.api.openai.thinking_options import ReasoningOptions, ReasoningWish, ThinkingSwitch
from baton.api.openai.tool_choice import ToolRule, tool_rule
from baton.api.openai.tools import Tools
from baton.api.prepared import Prepared
from baton.api.schema import SamplingBody
from baton.api.text_service import ChatPrompt, TextService, room_for_answer, served_model
from baton.api.truncation import most_tokens, truncated
from baton.core.cache_salt import text_scope
from baton.text.conversation import Message


class ChatBody(SamplingBody):
    """The fields of a chat request."""

    place: ClassVar[FieldPlace | None] = FieldPlace.CHAT

    messages: Annotated[Messages, works("the chat template, unchanged")]
    max_completion_tokens: Annotated[int | None, works("as max_tokens")] = None
    logprobs: Annotated[bool | None, works("log probabilities of the answer")] = None
    top_logprobs: Annotated[int | None, works("alternatives at each token of the answer")] = None
    tools: Annotated[
        Tools | None, works("the chat template, unchanged; calls are found in the answer")
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        works("which tools the template is given; a grammar that forces calls"),
    ] = None
    parallel_tool_calls: Annotated[bool, works("false: the answer has at most its first call")] = (
        True
    )
    separate_reasoning: Annotated[bool, works("false: the reasoning stays in the content")] = (
        True  # False: the reasoning stays in the content, with its marks
    )
    reasoning_effort: Annotated[
        str | None, works("variable of the chat template; none: thinking is off")
    ] = None
    thinking: Annotated[ThinkingSwitch, works("variables of the chat template")] = None
    enable_thinking: Annotated[bool | None, works("variables of the chat template")] = None
    reasoning: Annotated[ReasoningOptions | None, works("variables of the chat template")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, works("variables of the chat template")
    ] = None
    documents: Annotated[ListOf[dict[str, Any]] | None, works("variables of the chat template")] = (
        None
    )
    add_generation_prompt: Annotated[bool | None, works("variable of the chat template")] = (
        None  # None: unless the last message is continued
    )
    continue_final_message: Annotated[bool, works("the answer continues the last message")] = False
    add_special_tokens: Annotated[bool, works("the tokenizer; a chat's default is false")] = (
        False  # the template has them
    )
    prediction: Annotated[
        Prediction | None, works("guesses for draft tokens; changes no token")
    ] = None

    def check(self) -> None:
        super().check()
        if not self.messages:
            raise refused("messages", "messages is empty; expected at least one message")
        if self.top_logprobs and not self.logprobs:
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
        return tool_rule(self.tools or (), self.tool_choice, self.parallel_tool_calls)

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
        wish = self.reasoning or ReasoningWish()
        effort = wish.effort if self.reasoning_effort is None else self.reasoning_effort
        if effort is not None:
            found["reasoning_effort"] = effort
        switches = (
            self.enable_thinking,
            self.thinking,
            wish.on,
            None if effort is None else effort != "none",
        )
        on = next((switch for switch in switches if switch is not None), None)
        if on is not None:
            # The names by which templates turn thinking off: DeepSeek's, and most others'.
            found["thinking"] = found["enable_thinking"] = on
        return found | (self.chat_template_kwargs or {})

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its messages and prediction, and their token ids. Raises
        `ApiError`.
        """
        self.check()
        model = served_model(self.model, models)
        prompt = await self.encode(text, self.tool_rule(), model, owner)
        ids = truncated(prompt.ids, self, model, self.answer_tokens)
        self.room(ids, model)
        predicted = array("i", await self.predicted(text, model))
        none: dict[str, Any] = {
            "messages": (Message("user"),),
            "documents": None,
            "chat_template_kwargs": None,
        }
        if self.prediction is not None:
            none["prediction"] = self.prediction.model_copy(update={"content": ""})
        prepared = Prepared((array("i", ids),), prompt.thinking, prediction=predicted)
        return self.model_copy(update=none), prepared

    async def encode(
        self, text: TextService, rule: ToolRule | None, model: ModelInfo, owner: str | None
    ) -> ChatPrompt:
        """Return the conversation's token ids. Raises `ApiError`.

        owner: the name of the API key, as in `GenerateRequest`.
        """
        if self.prepared is not None:
            return ChatPrompt(self.prepared.prompts[0], self.prepared.thinking)
        if rule is not None and not rule.forced and text.tools is None:
            raise refused(
                "tools",
                "the form in which this model calls tools is not known here; name it with "
                "--tool-call-parser, or set tool_choice to required, which forces calls",
            )
        return await text.encode_chat(
            self.messages,
            add_generation_prompt=self.generation_prompt,
            continue_final_message=self.continue_final_message,
            add_special_tokens=self.add_special_tokens,
            tools=None if rule is None else rule.offered,
            variables=self.variables(),
            most=most_tokens(self, model),
            scope=text_scope(owner, self.salt),
        )

    async def predicted(self, text: TextService, model: ModelInfo) -> Sequence[int]:
        """Return the token ids of the prediction, if there is one. Raises `ApiError`."""
        if self.prepared is not None:
            return self.prepared.prediction
        return () if self.prediction is None else await self.prediction.encode(text, model)

    def room(self, ids: Sequence[int], model: ModelInfo) -> int:
        """Return the maximum number of answer tokens. Raises `ApiError`."""
        return room_for_answer(
            ids,
            self.answer_tokens,
            model,
            param="messages",
        )
