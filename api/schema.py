"""Common parts of request bodies: strict types, sampling fields and error messages."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema

from baton.api.backend import ModelInfo
from baton.api.body import Body, ListOf, RequestBody
from baton.api.client_salt import client_salt
from baton.api.errors import refused, shorten
from baton.api.fields.field_table import (
    DEADLINE,
    FORM,
    RANK,
    REASONS,
    SHARERS,
    TURN,
    FieldPlace,
    label,
    works,
)
from baton.api.fields.request_fields import REFUSED, FieldCheck, UnknownFields
from baton.api.json_schemas import JsonSchemas
from baton.api.requests import checked_sampling
from baton.api.structured import (
    ResponseFormat,
    StructuredOutputs,
    grammar_of,
    guided_grammars,
    one_grammar,
    tag_grammar,
)
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams

MAX_CHOICES = 128
OTHER_NAMES = {"include_stop": "include_stop_str_in_output"}
"""OpenAI's and vLLM's names of parameters that SamplingParams calls otherwise."""
BodyT = TypeVar("BodyT", bound=RequestBody)


def parse_body(
    kind: type[BodyT], raw: bytes, unknown: UnknownFields = UnknownFields.REFUSE
) -> BodyT:
    """Parse the body. Raises `ApiError` INVALID_REQUEST that names the field."""
    check = FieldCheck(unknown)
    try:
        body = kind.model_validate_json(raw, context=check)
    except ValidationError as err:
        raise _first_complaint(err) from err
    return body.with_ignored(check.ignored) if check.ignored else body


def make_body(kind: type[BodyT], fields: Mapping[str, Any]) -> BodyT:
    """Make a body of another endpoint's request. Raises `ApiError` as `parse_body` does."""
    try:
        return kind.model_validate(fields)
    except ValidationError as err:
        raise _first_complaint(err) from err


def _first_complaint(err: ValidationError) -> ApiError:
    errors = err.errors(include_url=False)
    # If a field may have several types, the error with the longest location fits best.
    same = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same, key=lambda error: (error["type"] == REFUSED, len(error["loc"])))
    path = [str(part) for part in first["loc"] if not _is_type(part)]
    if first["type"] == REFUSED:
        said = first["ctx"]
        param = ".".join([*path, said["field"]])
        return ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{param}: {said['why']}",
            param=param,
            expected=said["expected"],
        )
    param = ".".join(path)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return ApiError(ErrorCode.INVALID_REQUEST, f"the body is not valid JSON: {message}")
    if not param:
        return ApiError(ErrorCode.INVALID_REQUEST, f"the body: {message}")
    shown = "" if first["type"] == "missing" else shorten(repr(first["input"]))
    got = f" (got {shown})" if shown else ""
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"{param}: {message}{got}",
        param=param,
        expected=message,
        actual=shown,
    )


def _is_type(part: int | str) -> bool:
    """Return True for the member of a union that pydantic names in a location, as in
    rid.list[str].0.
    """
    if isinstance(part, int):
        return False
    return part in ("str", "int", "float", "bool") or "[" in part or not part[:1].islower()


def _one_or_many_strings(value: Any) -> Any:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("expected a string or a list of strings")


_STRINGS = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
Strings = Annotated[
    tuple[str, ...], BeforeValidator(_one_or_many_strings), WithJsonSchema(_STRINGS)
]


def _by_token_id(value: Any) -> Any:
    """Return a mapping of token ids, which JSON spells as texts."""
    if not isinstance(value, dict):
        raise ValueError("expected an object of token ids and numbers")
    found: dict[int, Any] = {}
    for name, bias in value.items():
        if not (name.isascii() and name.isdigit() and len(name) <= _ID_DIGITS):
            raise ValueError(f'expected token ids as names, such as {{"42": 1.5}}; {name[:20]!r}')
        found[int(name)] = bias
    return found


_ID_DIGITS = 12  # more than any id has; SamplingParams has the limit
_BIASES = {"type": "object", "additionalProperties": {"type": "number"}}
Biases = Annotated[dict[int, float], BeforeValidator(_by_token_id), WithJsonSchema(_BIASES)]


class StreamOptions(Body):
    place: ClassVar[FieldPlace | None] = FieldPlace.STREAM_OPTIONS

    include_usage: Annotated[bool, works("the numbers of tokens, at the end")] = False


class SamplingFields(Body):
    """Sampling parameters that all endpoints name as SamplingParams does.

    A field that is None or left out takes the default of SamplingParams, which also checks
    limits.
    """

    temperature: Annotated[float | None, works("sampling")] = None
    top_k: Annotated[int | None, works("sampling")] = None
    top_p: Annotated[float | None, works("sampling")] = None
    min_p: Annotated[float | None, works("sampling")] = None
    repetition_penalty: Annotated[float | None, works("sampling, before the temperature")] = None
    presence_penalty: Annotated[float | None, works("sampling, before the temperature")] = None
    frequency_penalty: Annotated[float | None, works("sampling, before the temperature")] = None
    seed: Annotated[int | None, works("the noise of sampling")] = None
    logit_bias: Annotated[Biases | None, works("added to logits, after the penalties")] = None
    allowed_token_ids: Annotated[
        Annotated[ListOf[int], Field(min_length=1)] | None,
        works("no other token comes, an end token included"),
    ] = None
    bad_words: Annotated[Strings, works("never spelt by the tokens that they are made of")] = ()
    stop: Annotated[Strings, works("ends the answer")] = ()
    stop_regex: Annotated[Strings, works("ends the answer; no anchors, no looking around")] = ()
    stop_token_ids: Annotated[ListOf[int] | None, works("ends the answer")] = None
    ignore_eos: Annotated[bool, works("true: the end token does not end the answer")] = False

    def given(self) -> dict[str, Any]:
        """Return the fields above that are not None."""
        values = self.__dict__
        return {name: value for name in _GIVEN if (value := values[name]) is not None}


_GIVEN = tuple(SamplingFields.model_fields)


class SamplingBody(SamplingFields, RequestBody):
    """The fields of both OpenAI endpoints: OpenAI's own, then those that engines commonly add.

    Large because each is a name that clients send; its mark says what it is for.
    """

    model: Annotated[str | None, works("the served name; default and an empty one are any")] = None
    n: Annotated[int | None, works("answers to each prompt")] = None
    stream: Annotated[bool | None, works("the reply comes in parts")] = None
    stream_options: Annotated[
        StreamOptions | None, works("what a stream has besides its parts")
    ] = None
    max_tokens: Annotated[int | None, works("most and fewest tokens of an answer")] = None

    min_tokens: Annotated[int, works("most and fewest tokens of an answer")] = 0
    repeat_penalty: Annotated[float | None, works("as repetition_penalty")] = (
        None  # the name that Open WebUI and llama.cpp have
    )
    include_stop_str_in_output: Annotated[bool, works("true: a stop string stays in the text")] = (
        False
    )
    no_stop_trim: Annotated[bool, works("as include_stop_str_in_output")] = False
    skip_special_tokens: Annotated[bool, works("false: special tokens are shown")] = True
    priority: Annotated[int | None, TURN] = None
    routed_dp_rank: Annotated[int | None, RANK] = None
    data_parallel_rank: Annotated[int | None, RANK] = None  # the older name of routed_dp_rank
    timeout: Annotated[float | None, DEADLINE] = None
    cache_salt: Annotated[str | None, SHARERS] = None
    extra_key: Annotated[str | None, SHARERS] = None  # SGLang's name for it; both count
    explain: Annotated[bool, REASONS] = False
    return_cached_tokens_details: Annotated[
        bool,
        works(
            "`sglext` says how many cached tokens came from the device, the host's tier and files"
        ),
    ] = False
    prompt_logprobs: Annotated[int | None, works("alternatives at each token of the prompt")] = None
    truncate_prompt_tokens: Annotated[
        int | None, works("most prompt tokens; -1: what the context leaves")
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"], works("left (the default) or right: the side that is cut")
    ] = "left"

    response_format: Annotated[ResponseFormat | None, FORM] = None
    json_schema: Annotated[str | None, FORM] = None
    regex: Annotated[str | None, FORM] = None
    ebnf: Annotated[str | None, FORM] = None
    structural_tag: Annotated[dict[str, Any] | str | None, FORM] = None
    guided_json: Annotated[dict[str, Any] | str | None, FORM] = None
    guided_regex: Annotated[str | None, FORM] = None
    guided_choice: Annotated[ListOf[str] | None, FORM] = None
    guided_grammar: Annotated[str | None, FORM] = None
    structured_outputs: Annotated[StructuredOutputs | None, FORM] = None

    rid: Annotated[str | None, works("the id that /abort_request takes", carried=True)] = None
    request_id: Annotated[
        str | None, label("the id that /abort_request takes, if there is no rid", carried=True)
    ] = None
    user: Annotated[
        str | None, label("the id that /abort_request takes, if there is no rid", carried=True)
    ] = None

    def check(self) -> None:
        """Check what the types alone do not express. Raises `ApiError`."""
        if not 1 <= self.choices <= MAX_CHOICES:
            raise refused("n", f"n is {self.n}; expected 1 to {MAX_CHOICES}")
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "stream_options needs stream to be true")
        if None not in (self.repeat_penalty, self.repetition_penalty):
            raise refused("repeat_penalty", "repetition_penalty is the same; give one of them")
        if self.prompt_logprobs is not None and self.stream:
            raise refused("prompt_logprobs", "prompt_logprobs are not sent in a stream")

    def given(self) -> dict[str, Any]:
        found = super().given()
        if self.repeat_penalty is not None:
            found["repetition_penalty"] = self.repeat_penalty
        return found

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def client_id(self) -> str | None:
        """The caller's own id of this request."""
        return self.rid or self.request_id or self.user

    @property
    def dp_rank(self) -> int | None:
        return self.data_parallel_rank if self.routed_dp_rank is None else self.routed_dp_rank

    @property
    def salt(self) -> bytes:
        """The cache salt that the client names. Raises `ApiError`."""
        return client_salt({"cache_salt": self.cache_salt, "extra_key": self.extra_key})

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def constrained(self) -> bool:
        """True if a field asks for a form of the answer."""
        for name in _FORMS:
            if self.__dict__[name] is not None:
                return True
        return False

    def wanted_grammar(self, schemas: JsonSchemas) -> tuple[Grammar | None, str]:
        """Return the grammar of the answer and the field that set it. Raises `ApiError`."""
        form, schema = self.response_format, self.json_schema
        return one_grammar(
            {
                "response_format": None if form is None else form.grammar(schemas),
                "json_schema": None if schema is None else schemas.grammar(schema, "json_schema"),
                "regex": grammar_of(GrammarKind.REGEX, self.regex),
                "ebnf": grammar_of(GrammarKind.EBNF, self.ebnf),
                "structural_tag": tag_grammar(self.structural_tag, "structural_tag", schemas),
            }
            | guided_grammars(
                "guided_",
                schemas,
                self.guided_json,
                self.guided_regex,
                self.guided_choice,
                self.guided_grammar,
            )
            | ({} if self.structured_outputs is None else self.structured_outputs.grammars(schemas))
        )

    def sampling(
        self,
        max_tokens: int,
        model: ModelInfo,
        names: Mapping[str, str] | None = None,
        *,
        grammar: Grammar | None = None,
        **more: Any,
    ) -> SamplingParams:
        """Return checked parameters. names: this endpoint's names of parameters, where they differ
        from those in SamplingParams. Raises `ApiError` that names the body's field."""
        return checked_sampling(
            self._names() | dict(names or {}),
            **{**model.sampling_defaults, **self.given()},
            include_stop=self.include_stop_str_in_output or self.no_stop_trim,
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            grammar=grammar,
            **more,
        )

    def _names(self) -> dict[str, str]:
        """Return this body's names of parameters, by those in SamplingParams."""
        if self.repeat_penalty is None:
            return OTHER_NAMES
        return OTHER_NAMES | {"repetition_penalty": "repeat_penalty"}


_FORMS = tuple(name for name, field in SamplingBody.model_fields.items() if FORM in field.metadata)
