"""What every OpenAI request body shares: strict types, sampling fields, clear complaints."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from baton.api.errors import ApiError, ErrorCode, shorten
from baton.api.sampling import MAX_SEED, SamplingParams
from baton.api.structured import ResponseFormat, one_grammar
from baton.text.grammar import Grammar, GrammarKind

MAX_CHOICES = 128


class Body(BaseModel):
    """Unknown fields are ignored, as OpenAI's clients expect; known ones keep to their types."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], raw: bytes) -> BodyT:
    """The body, or `ApiError` INVALID_REQUEST that names the field."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as err:
        raise _first_complaint(err) from err


def _first_complaint(err: ValidationError) -> ApiError:
    errors = err.errors(include_url=False)
    # Where a field may have one of several types, the one that fits best got furthest.
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
    """pydantic names the member of a union that it tried, as in rid.list[str].0."""
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


class SamplingBody(Body):
    """OpenAI's fields first, then the ones that engines commonly add."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: Strings = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    min_tokens: int = 0
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int | None = None  # the larger goes first; None: 0
    routed_dp_rank: int | None = None

    response_format: ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None

    def check(self) -> None:
        """What types alone do not say; raises `ApiError`."""
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
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted_grammar(self) -> tuple[Grammar | None, str]:
        """What the answer must look like, and the field that says so; raises `ApiError`."""
        form = self.response_format
        return one_grammar(
            {
                "response_format": None if form is None else form.grammar(),
                "regex": None if self.regex is None else Grammar(GrammarKind.REGEX, self.regex),
                "ebnf": None if self.ebnf is None else Grammar(GrammarKind.EBNF, self.ebnf),
            }
        )

    def sampling(self, max_tokens: int, **more: Any) -> SamplingParams:
        """Checked parameters; fields that were left out or null take the defaults there."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }
        fields: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        return SamplingParams(
            **fields,
            seed=unsigned_seed(self.seed),
            stop=self.stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            include_stop=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            grammar=self.wanted_grammar()[0],
            **more,
        )


def refused(param: str, message: str) -> ApiError:
    """INVALID_REQUEST for a field that is well typed but not served."""
    return ApiError(ErrorCode.INVALID_REQUEST, message, param=param)


def unsigned_seed(seed: int | None) -> int | None:
    """OpenAI's seeds are signed; negative ones are as good as their two's complement."""
    if seed is None:
        return None
    if not -(2**63) <= seed <= MAX_SEED:
        raise refused("seed", f"seed is {seed}; expected a 64-bit integer")
    return seed % (MAX_SEED + 1)
