"""The body of `POST /generate`, by SGLang's names.

Source of names and defaults: SGLang's documentation, "Sampling Parameters" and "Native APIs".
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BeforeValidator, Field

from baton.api.backend import ModelInfo
from baton.api.body import ListOf, RequestBody
from baton.api.client_salt import client_salt
from baton.api.errors import invalid, refused
from baton.api.fields.field_table import (
    DEADLINE,
    FORM,
    RANK,
    REASONS,
    SHARERS,
    TURN,
    FieldPlace,
    works,
)
from baton.api.json_schemas import JsonSchemas
from baton.api.openai.completion_schema import MAX_PROMPTS
from baton.api.prepared import Prepared
from baton.api.requests import checked_sampling
from baton.api.schema import MAX_CHOICES, SamplingFields
from baton.api.structured import grammar_of, one_grammar, tag_grammar
from baton.api.text_service import TextService, room_for_answer, served_model
from baton.core.cache_salt import SHARED
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams

DEFAULT_NEW_TOKENS = 128
T = TypeVar("T")

NATIVE_NAMES = {name: f"sampling_params.{name}" for name in SamplingFields.model_fields} | {
    "min_tokens": "sampling_params.min_new_tokens",
    "max_tokens": "sampling_params.max_new_tokens",
    "include_stop": "sampling_params.no_stop_trim",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "prompt_logprobs_start": "logprob_start_len",
    "logprob_token_ids": "token_ids_logprob",
}
"""The names of parameters in the body, by those in SamplingParams."""


class NativeSampling(SamplingFields):
    """The field `sampling_params`."""

    place: ClassVar[FieldPlace | None] = FieldPlace.SAMPLING

    max_new_tokens: Annotated[int | None, works("most and fewest tokens of an answer")] = (
        None  # None: 128, or what the context leaves
    )
    min_new_tokens: Annotated[int, works("most and fewest tokens of an answer")] = 0
    n: Annotated[int, works("answers to each prompt")] = Field(default=1, ge=1, le=MAX_CHOICES)
    sampling_seed: Annotated[int | None, works("as seed")] = None
    skip_special_tokens: Annotated[bool, works("false: special tokens are shown")] = True
    no_stop_trim: Annotated[bool, works("as include_stop_str_in_output")] = False
    json_schema: Annotated[str | None, FORM] = None
    regex: Annotated[str | None, FORM] = None
    ebnf: Annotated[str | None, FORM] = None
    structural_tag: Annotated[dict[str, Any] | str | None, FORM] = None

    def check(self) -> None:
        """Check what the types alone do not express. Raises `ApiError`."""
        if None not in (self.seed, self.sampling_seed) and self.seed != self.sampling_seed:
            raise refused(
                "sampling_params.sampling_seed",
                f"seed is {self.seed} but sampling_seed {self.sampling_seed}; give one of them",
            )

    @property
    def constrained(self) -> bool:
        """True if a field asks for a form of the answer."""
        for name in _FORMS:
            if self.__dict__[name] is not None:
                return True
        return False

    def wanted_grammar(self, schemas: JsonSchemas) -> tuple[Grammar | None, str]:
        """Return the grammar of the answer and the field that set it. Raises `ApiError`."""
        schema, tags = self.json_schema, "sampling_params.structural_tag"
        return one_grammar(
            {
                "sampling_params.json_schema": None
                if schema is None
                else schemas.grammar(schema, "sampling_params.json_schema"),
                "sampling_params.regex": grammar_of(GrammarKind.REGEX, self.regex),
                "sampling_params.ebnf": grammar_of(GrammarKind.EBNF, self.ebnf),
                tags: tag_grammar(self.structural_tag, tags, schemas),
            }
        )

    def params(
        self,
        max_tokens: int,
        want: "LogprobsWanted",
        model: ModelInfo,
        grammar: Grammar | None,
    ) -> SamplingParams:
        """Return checked parameters. Fields that were left out or are null take the defaults."""
        given = {**model.sampling_defaults, **self.given()}
        if self.seed is None and self.sampling_seed is not None:
            given["seed"] = self.sampling_seed
        return checked_sampling(
            NATIVE_NAMES,
            **given,
            include_stop=self.no_stop_trim,
            min_tokens=self.min_new_tokens,
            max_tokens=max_tokens,
            logprobs=want.top if want.wanted else None,
            prompt_logprobs_start=want.start,
            prompt_logprobs=want.top if want.start is not None else 0,
            logprob_token_ids=want.token_ids,
            grammar=grammar,
        )


_NO_SAMPLING = NativeSampling()
_FORMS = tuple(name for name, each in NativeSampling.model_fields.items() if FORM in each.metadata)


@dataclass(frozen=True)
class LogprobsWanted:
    """The log probabilities that one prompt asks for."""

    wanted: bool = False
    start: int | None = None  # the first prompt position to score; None: no prompt scores
    top: int = 0  # alternatives for each position
    token_ids: tuple[int, ...] = ()  # further ids to score at each position


@dataclass(frozen=True)
class Asked:
    """One prompt of a body, with everything that was asked for it."""

    prompt: str | Sequence[int]
    param: str  # "text" or "input_ids"
    sampling: NativeSampling
    logprobs: LogprobsWanted
    label: str | None  # the id that `/abort_request` takes
    reply_id: str | None  # None: the server makes one
    salt: bytes = field(repr=False)  # as in `GenerateRequest.cache_salt`

    async def prompt_ids(self, text: TextService, model: ModelInfo) -> Sequence[int]:
        """Return the prompt's token ids. Raises `ApiError`."""
        if not isinstance(self.prompt, str):
            return self.prompt
        return await text.encode(self.prompt, param="text", most=model.max_model_len)


def _not_too_many(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_PROMPTS:
        raise ValueError(f"{len(value)} entries; expected at most {MAX_PROMPTS}")
    return value


Samplings = Annotated[NativeSampling | ListOf[NativeSampling], BeforeValidator(_not_too_many)]


class GenerateBody(RequestBody):
    place: ClassVar[FieldPlace | None] = FieldPlace.GENERATE

    text: Annotated[str | ListOf[str] | None, works("one prompt or several")] = None
    input_ids: Annotated[
        ListOf[int] | ListOf[ListOf[int]] | None, works("one prompt or several")
    ] = None
    sampling_params: Annotated[Samplings | None, works("one object, or one for each prompt")] = None
    rid: Annotated[
        str | ListOf[str] | None, works("the id that /abort_request takes", carried=True)
    ] = None
    return_logprob: Annotated[
        bool | ListOf[bool] | None, works("log probabilities, from where on")
    ] = None
    logprob_start_len: Annotated[
        int | ListOf[int] | None, works("log probabilities, from where on")
    ] = None  # -1: none of the prompt's
    top_logprobs_num: Annotated[int | ListOf[int] | None, works("which log probabilities")] = None
    token_ids_logprob: Annotated[
        ListOf[int] | ListOf[ListOf[int]] | None, works("which log probabilities")
    ] = None
    return_text_in_logprobs: Annotated[bool, works("the text of each scored token")] = False
    stream: Annotated[bool, works("the reply comes in parts")] = False
    priority: Annotated[int | None, TURN] = None
    timeout: Annotated[float | None, DEADLINE] = None
    routed_dp_rank: Annotated[int | None, RANK] = None
    data_parallel_rank: Annotated[int | None, RANK] = None  # the older name of routed_dp_rank
    extra_key: Annotated[str | ListOf[str] | None, SHARERS] = None
    cache_salt: Annotated[str | ListOf[str] | None, SHARERS] = None  # vLLM's name; both count
    explain: Annotated[bool, REASONS] = False

    @property
    def dp_rank(self) -> int | None:
        return self.data_parallel_rank if self.routed_dp_rank is None else self.routed_dp_rank

    @property
    def batched(self) -> bool:
        """Return True if a list of prompts was given, even a list of one."""
        given = self.text if self.input_ids is None else self.input_ids
        return isinstance(given, list) and (self.input_ids is None or isinstance(given[0], list))

    def asked(self) -> list[Asked]:
        """Return one entry for each prompt. Raises `ApiError` for values that the types allow
        but that are wrong.
        """
        prompts, param = self._prompts()
        count = len(prompts)
        samplings = _each("sampling_params", self.sampling_params, count, _NO_SAMPLING)
        wanted, starts, tops = [False] * count, [-1] * count, [0] * count
        labels: list[str | None] = [None] * count
        if self.return_logprob is not None:
            wanted = _each("return_logprob", self.return_logprob, count, False)
        if self.logprob_start_len is not None:
            starts = _each("logprob_start_len", self.logprob_start_len, count, -1)
        if self.top_logprobs_num is not None:
            tops = _each("top_logprobs_num", self.top_logprobs_num, count, 0)
        if self.rid is not None:
            labels = list(_each("rid", self.rid, count, None))
        asked_ids = self._token_ids(count)
        salts = self._salts(count)
        for sampling in samplings:
            sampling.check()
        if sum([sampling.n for sampling in samplings]) > MAX_PROMPTS:
            raise refused(param, f"more than {MAX_PROMPTS} answers in one request; split it")
        shared = self.batched and isinstance(self.rid, str)
        if self.prepared is not None:
            prompts = self.prepared.prompts
        return [
            Asked(
                prompts[i],
                param,
                samplings[i],
                _logprobs(wanted[i], starts[i], tops[i], asked_ids[i]),
                labels[i],
                f"{labels[i]}_{i}" if shared else labels[i],
                salts[i],
            )
            for i in range(count)
        ]

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its prompts, and their token ids. Raises `ApiError`."""
        model = served_model(None, models)
        found = []
        for asked in self.asked():
            ids = await asked.prompt_ids(text, model)
            room_for_answer(ids, None, model, param=asked.param)
            found.append(array("i", ids))
        none: dict[str, Any] = {"text": None if self.text is None else ""}
        if isinstance(self.text, list):
            none["text"] = [""] * len(self.text)
        if self.input_ids is not None:
            none["input_ids"] = [[0]] * len(found) if self.batched else [0]
        return self.model_copy(update=none), Prepared(tuple(found))

    def _salts(self, count: int) -> list[bytes]:
        """Return the cache salt of each prompt."""
        if self.cache_salt is None and self.extra_key is None:
            return [SHARED] * count
        salts: list[str | None] = list(_each("cache_salt", self.cache_salt, count, None))
        keys: list[str | None] = list(_each("extra_key", self.extra_key, count, None))
        return [
            client_salt({"cache_salt": salt, "extra_key": key})
            for salt, key in zip(salts, keys, strict=True)
        ]

    def _token_ids(self, count: int) -> list[tuple[int, ...]]:
        """Return one list of ids for each prompt, from one list for all or one for each."""
        given = self.token_ids_logprob
        if not given:
            return [()] * count
        lists = [tuple(ids) for ids in given if isinstance(ids, list)]
        if lists:
            return _each("token_ids_logprob", lists, count, ())
        return [tuple(token for token in given if isinstance(token, int))] * count

    def _prompts(self) -> tuple[Sequence[str | Sequence[int]], str]:
        if (self.text is None) == (self.input_ids is None):
            raise refused("text", "expected exactly one of text and input_ids")
        if self.text is not None:
            texts = self.text if isinstance(self.text, list) else [self.text]
            return _not_empty(texts, "text"), "text"
        ids = _not_empty(self.input_ids or [], "input_ids")
        many = [item for item in ids if isinstance(item, list)]
        return many or [[item for item in ids if isinstance(item, int)]], "input_ids"


def _not_empty(given: Sequence[T], param: str) -> Sequence[T]:
    if not given:
        raise refused(param, f"{param} is empty; expected a prompt")
    if len(given) > MAX_PROMPTS and not isinstance(given[0], int):
        raise refused(param, f"{len(given)} prompts in one request; at most {MAX_PROMPTS}")
    return given


def _each(name: str, given: Any, count: int, default: T) -> list[T]:
    """Return one value for each prompt, from a single value or from a list."""
    if not isinstance(given, list):
        return [default if given is None else given] * count
    if len(given) != count:
        raise invalid(
            name,
            f"{name} has {len(given)} entries for {count} prompts; give one for each, or one value",
            expected=str(count),
            actual=len(given),
        )
    return given


def _logprobs(wanted: bool, start: int, top: int, token_ids: tuple[int, ...]) -> LogprobsWanted:
    if not wanted:
        return LogprobsWanted()
    if start < -1:
        raise invalid(
            "logprob_start_len",
            f"logprob_start_len is {start}; expected a position in the prompt, or -1 for none",
            expected="-1 or more",
            actual=start,
        )
    return LogprobsWanted(True, None if start < 0 else start, top, token_ids)
