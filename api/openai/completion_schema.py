"""The body of `POST /v1/completions`."""

from array import array
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, WithJsonSchema

from baton.api.backend import ModelInfo
from baton.api.echo import Echo
from baton.api.echo_maker import echo_of_ids, echo_of_text
from baton.api.errors import refused
from baton.api.fields.field_table import FieldPlace, works
from baton.api.prepared import Prepared
from baton.api.schema import MAX_CHOICES, SamplingBody
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.api.truncation import most_tokens, truncated

MAX_PROMPTS = 256


def _prompts(value: Any) -> Any:
    """Return a string, token ids, or a list of either as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if all(type(item) is int for item in value):
            return [value]
        if all(isinstance(item, str) for item in value):
            return value
        if all(isinstance(item, list) and all(type(i) is int for i in item) for item in value):
            return value
    raise ValueError("expected a string, a list of strings, token ids, or a list of token ids")


_IDS = {"type": "array", "items": {"type": "integer"}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
Prompts = Annotated[
    list[str | list[int]],
    BeforeValidator(_prompts),
    WithJsonSchema({"anyOf": [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS}]}),
]


class CompletionBody(SamplingBody):
    """The fields of a completion request."""

    place: ClassVar[FieldPlace | None] = FieldPlace.COMPLETIONS

    prompt: Annotated[Prompts, works("one prompt or several, as text or token ids")]
    echo: Annotated[bool | None, works("the reply begins with the prompt")] = None
    logprobs: Annotated[int | None, works("log probabilities of the answer")] = None
    best_of: Annotated[
        int | None, works("answers computed to each prompt, of which the n best come")
    ] = None
    return_token_ids: Annotated[bool, works("the reply has the answer's token ids")] = (
        False  # every choice also has its token ids
    )
    add_special_tokens: Annotated[bool, works("the tokenizer; a chat's default is false")] = True

    def check(self) -> None:
        super().check()
        if not self.choices <= self.computed <= MAX_CHOICES:
            raise refused(
                "best_of", f"best_of is {self.best_of}; expected n to {MAX_CHOICES}, n included"
            )
        if self.stream and self.computed != self.choices:
            raise refused("best_of", "best_of cannot be streamed; set stream to false, or n alone")
        if self.echo and None not in (self.logprobs, self.prompt_logprobs):
            if self.logprobs != self.prompt_logprobs:
                raise refused(
                    "prompt_logprobs",
                    f"prompt_logprobs is {self.prompt_logprobs}, but the echoed prompt has "
                    f"{self.logprobs} (logprobs); give the same",
                )
        answers = len(self.prompt) * self.computed
        if answers > MAX_PROMPTS:
            raise refused(
                "prompt", f"{answers} answers in one request; expected at most {MAX_PROMPTS}"
            )

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its prompts, and their token ids. Raises `ApiError`."""
        self.check()
        model = served_model(self.model, models)
        found, echoes = [], []
        for prompt in self.prompt:
            ids = await self.prompt_ids(prompt, text, model)
            room_for_answer(ids, self.answer_tokens, model)
            found.append(array("i", ids))
            echoes.append(await self.echo_of(prompt, ids, text))
        rest = self.model_copy(update={"prompt": [""] * len(self.prompt)})
        return rest, Prepared(tuple(found), echoes=tuple(echoes))

    async def prompt_ids(
        self, prompt: str | list[int], text: TextService, model: ModelInfo
    ) -> Sequence[int]:
        """Return a prompt's token ids, cut as the body asks. Raises `ApiError`."""
        ids: Sequence[int] = (
            prompt
            if isinstance(prompt, list)
            else await text.encode(
                prompt, add_special_tokens=self.add_special_tokens, most=most_tokens(self, model)
            )
        )
        return truncated(ids, self, model, self.answer_tokens)

    async def echo_of(self, prompt: str | list[int], ids: Sequence[int], text: TextService) -> Echo:
        """Return the echo of `prompt`, of which `ids` are computed."""
        offsets = self.logprobs is not None
        if not self.echo:
            return Echo(ids[-1])
        if isinstance(prompt, str) and self.truncate_prompt_tokens is None:
            special = self.add_special_tokens
            return await echo_of_text(
                text, prompt, ids, add_special_tokens=special, offsets=offsets
            )
        skip = self.skip_special_tokens
        return await echo_of_ids(text, ids, skip_special_tokens=skip, offsets=offsets)

    @property
    def computed(self) -> int:
        """Return the number of answers to each prompt of which `choices` are returned."""
        return self.choices if self.best_of is None else self.best_of

    @property
    def answer_tokens(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens
