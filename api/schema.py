"""Common parts of request bodies: strict types, sampling fields and error messages."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from baton.api.client_salt import client_salt
from baton.api.errors import shorten
from baton.api.requests import checked_sampling
from baton.api.structured import ResponseFormat, one_grammar
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams

MAX_CHOICES = 128


class Body(BaseModel):
    """A request body. Unknown fields are ignored, as OpenAI's clients expect; known ones are
    typed.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], raw: bytes) -> BodyT:
    """Parse the body. Raises `ApiError` INVALID_REQUEST that names the field."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as err:
        raise _first_complaint(err) from err


def _first_complaint(err: ValidationError) -> ApiError:
    errors = err.errors(include_url=False)
    # If a field may have several types, the error with the longest location fits best.
    same = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    first = max(same, key=lambda error: len(error["loc"]))
    param = ".".join(str(part) for part in first["loc"] if not _is_type(part))
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


Strings = Annotated[tuple[str, ...], BeforeValidator(_one_or_many_strings)]


class StreamOptions(Body):
    include_usage: bool = False


class SamplingFields(Body):
    """Sampling parameters that all endpoints name as SamplingParams does.

    A field that is None or left out takes the default of SamplingParams, which also checks
    limits.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: Strings = ()
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False

    def given(self) -> dict[str, Any]:
        """Return the fields above that are not None."""
        values = {name: self.__dict__[name] for name in SamplingFields.model_fields}
        return {name: value for name, value in values.items() if value is not None}


class SamplingBody(SamplingFields):
    """The fields of both OpenAI endpoints: OpenAI's own, then those that engines commonly add."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None

    min_tokens: int = 0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int | None = None  # a larger value goes first; None: 0
    routed_dp_rank: int | None = None
    cache_salt: str | None = None  # only requests of the same salt share cached prefixes
    extra_key: str | None = None  # SGLang's name for it; where both are given, both count

    response_format: ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None

    def check(self) -> None:
        """Check what the types alone do not express. Raises `ApiError`."""
        if not 1 <= self.choices <= MAX_CHOICES:
            raise refused("n", f"n is {self.n}; expected 1 to {MAX_CHOICES}")
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "stream_options needs stream to be true")
        if self.logit_bias:
            raise refused("logit_bias", "logit_bias is not supported; leave it out")

    @property
    def choices(self) -> int:
        return 1 if self.n is None else self.n

    @property
    def salt(self) -> bytes:
        """The cache salt that the client names. Raises `ApiError`."""
        return client_salt({"cache_salt": self.cache_salt, "extra_key": self.extra_key})

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted_grammar(self) -> tuple[Grammar | None, str]:
        """Return the grammar of the answer and the field that set it. Raises `ApiError`."""
        form = self.response_format
        return one_grammar(
            {
                "response_format": None if form is None else form.grammar(),
                "regex": None if self.regex is None else Grammar(GrammarKind.REGEX, self.regex),
                "ebnf": None if self.ebnf is None else Grammar(GrammarKind.EBNF, self.ebnf),
            }
        )

    def sampling(
        self, max_tokens: int, names: Mapping[str, str] | None = None, **more: Any
    ) -> SamplingParams:
        """Return checked parameters. names: this endpoint's names of parameters, where they differ
        from those in SamplingParams. Raises `ApiError` that names the body's field."""
        return checked_sampling(
            {"include_stop": "include_stop_str_in_output"} | dict(names or {}),
            **self.given(),
            include_stop=self.include_stop_str_in_output,
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            grammar=self.wanted_grammar()[0],
            **more,
        )


def refused(param: str, message: str) -> ApiError:
    """Return INVALID_REQUEST for a field that is well typed but not supported."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, param=param)
