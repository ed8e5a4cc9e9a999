"""The format of a request dump: a header line, then a line of JSON for each request that ended."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from baton.core.errors import ConfigError
from baton.core.grammar import Grammar
from baton.core.limits import numbers_of
from baton.core.sampling_params import SamplingParams

VERSION = 1
SUFFIX = ".requests.jsonl"
PLAIN = numbers_of(SamplingParams)
"""Sampling parameters that say nothing of what a prompt or an answer is about."""


@dataclass(frozen=True)
class DumpHeader:
    """The first line of a dump."""

    model: str
    started: float  # Unix time; requests count from it
    block: int  # tokens that one id of `RequestRecord.blocks` stands for
    redacted: bool  # no prompts, no labels, and no sampling parameters but those of PLAIN
    baton_dump: int = VERSION

    def line(self) -> str:
        return _line(asdict(self))


@dataclass(frozen=True)
class RequestRecord:
    """One request of a dump.

    Two prompts of one dump have the same first n blocks if and only if their first n * `block`
    tokens are equal and they have the same cache salt. The last block may be shorter.
    """

    arrived_s: float  # after the dump's start
    prompt_tokens: int
    output_tokens: int  # that the client was given
    outcome: str  # a finish reason or an error code
    blocks: tuple[int, ...]
    sampling: Mapping[str, Any]  # parameters that are not the default, by name
    priority: int = 0
    routed_dp_rank: int | None = None
    salt: int = 0  # the number of its cache salt in this dump; 0: none
    lengths: Mapping[str, Any] = field(default_factory=dict)  # of redacted parameters
    prompt_ids: tuple[int, ...] | None = None  # None where redacted
    labels: Mapping[str, str] = field(default_factory=dict)  # of the call; none where redacted

    def line(self) -> str:
        given = asdict(self)
        return _line({name: value for name, value in given.items() if value not in (None, {})})

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read a line. Raises ConfigError for one that is not as `line` makes it."""
        try:
            given = {"sampling": {}} | json.loads(line)
            given["blocks"] = tuple(given["blocks"])
            if given.get("prompt_ids") is not None:
                given["prompt_ids"] = tuple(given["prompt_ids"])
            return cls(**given)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"this is no line of a request dump: {error!r}") from error


def parse_header(line: str) -> DumpHeader:
    """Read the first line. Raises ConfigError for another format, or a newer one."""
    try:
        header = DumpHeader(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"this is no request dump: {error!r}") from error
    if header.baton_dump != VERSION:
        raise ConfigError(
            f"the dump has version {header.baton_dump}; this Baton reads version {VERSION}"
        )
    return header


def sampling_values(params: SamplingParams, *, redacted: bool) -> dict[str, Any]:
    """Return the parameters that are not the default; where redacted, those of PLAIN alone."""
    defaults = asdict(SamplingParams())
    given = {name: value for name, value in asdict(params).items() if value != defaults[name]}
    return {name: given[name] for name in PLAIN if name in given} if redacted else given


def sampling_lengths(params: SamplingParams) -> dict[str, Any]:
    """Return what is told of parameters that `sampling_values` leaves out: their lengths."""
    left_out = (each.name for each in fields(params) if each.name not in PLAIN)
    lengths = {name: _length(params.__dict__[name]) for name in left_out}
    return {name: length for name, length in lengths.items() if length}


def _length(value: object) -> object:
    """Return the lengths of texts, the number of other entries, or what is told of a grammar."""
    if isinstance(value, Grammar):
        return {"kind": str(value.kind), "chars": len(value.text)}
    if not isinstance(value, tuple):
        return None
    texts = [len(entry) for entry in value if isinstance(entry, str)]
    return texts or len(value)


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
