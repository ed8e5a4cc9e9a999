"""Limits on the values of a dataclass's fields.

A rule stands in its field's metadata; `checked` applies it and returns the value to keep. Where the
default is None, None is legal.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Protocol, TypeVar, get_args, get_type_hints

from baton.core.errors import RequestError

MAX_INT32 = 2**31 - 1
_SHOWN_CHARS = 80  # a megabyte that was sent by mistake must not come back in an error
T = TypeVar("T")


class Rule(Protocol):
    """One field's limits."""

    def checked(self, name: str, value: object) -> object:
        """Return the value to keep for field `name`. Raises RequestError that names the field."""
        ...


@dataclass(frozen=True)
class FloatRange:
    """Finite numbers from `low` to `high`, both included, rounded to float32.

    Kernels and protobuf messages hold float32. Rounding before the comparison makes a value and its
    verdict equal in every process, however the value travelled.
    """

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"

    def checked(self, name: str, value: object) -> float:
        """Return `value` as float32 holds it. Raises RequestError."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise refusal(name, value, f"a number, {self}")
        rounded = float32(value)
        if not float32(self.low) <= rounded <= float32(self.high):  # false for NaN too
            raise refusal(name, value, str(self))
        return rounded


@dataclass(frozen=True)
class IntRange:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"

    def checked(self, name: str, value: object, subject: str = "") -> int:
        """Return `value`. subject: its name in the error's message, where it is not `name`."""
        if not isinstance(value, int) or isinstance(value, bool) or not self.contains(value):
            raise refusal(name, value, str(self), subject)
        return value

    def contains(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class TokenIds:
    """Up to `most` token ids, each a non-negative int32."""

    most: int

    def checked(self, name: str, value: object) -> tuple[int, ...]:
        """Return the ids as a tuple. Raises RequestError."""
        ids = _sequence(name, value, "token ids")
        IntRange(0, self.most).checked(name, len(ids), f"number of {name}")
        return tuple(IntRange(0, MAX_INT32).checked(name, each) for each in ids)


@dataclass(frozen=True)
class TokenBiases:
    """Up to `most` token ids, each with a number from -`largest` to `largest`."""

    most: int
    largest: float

    def checked(self, name: str, value: object) -> tuple[tuple[int, float], ...]:
        """Return (id, number) pairs by rising id, without those of 0. Raises RequestError.

        value: a mapping of ids to numbers, or such pairs.
        """
        pairs = value.items() if isinstance(value, Mapping) else _sequence(name, value, "pairs")
        IntRange(0, self.most).checked(name, len(pairs), f"number of entries of {name}")
        given = dict(self._pair(name, each) for each in pairs)
        return tuple((token, bias) for token, bias in sorted(given.items()) if bias)

    def _pair(self, name: str, value: object) -> tuple[int, float]:
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise refusal(name, value, "pairs of a token id and a number")
        token = IntRange(0, MAX_INT32).checked(name, value[0], f"a token of {name}")
        return token, FloatRange(-self.largest, self.largest).checked(name, value[1])


@dataclass(frozen=True)
class Texts:
    """Up to `most` strings of 1 to `longest` characters."""

    most: int
    longest: int

    def checked(self, name: str, value: object) -> tuple[str, ...]:
        """Return the strings as a tuple. Raises RequestError."""
        texts = _sequence(name, value, "strings")
        IntRange(0, self.most).checked(name, len(texts), f"number of {name} strings")
        return tuple(self._text(name, each) for each in texts)

    def _text(self, name: str, value: object) -> str:
        if not isinstance(value, str):
            raise refusal(name, value, "strings")
        IntRange(1, self.longest).checked(name, len(value), f"length of a {name} string")
        return value


def limited(default: T, rule: Rule, *, secret: bool = False, recommended: bool = False) -> T:
    """Return the dataclass field with this default and rule.

    secret: a number that no redacted record has; see `numbers_of`. recommended: a model's folder
    may have another default.
    """
    metadata = {"rule": rule, "secret": secret, "recommended": recommended}
    return field(default=default, metadata=metadata)


def numbers_of(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass that are numbers and truth values alone, but for secret
    ones: they say nothing of what a request is about.
    """
    hints = get_type_hints(kind)
    return tuple(
        each.name
        for each in fields(kind)
        if _kinds(hints[each.name]) <= {int, float, bool} and not each.metadata.get("secret")
    )


def _kinds(hint: object) -> set[object]:
    """Return the types that a field may have besides None."""
    return set(get_args(hint)) - {type(None)} if isinstance(hint, UnionType) else {hint}


def float32(value: float) -> float:
    """Return the float32 that is nearest to `value`; infinite past float32's range."""
    try:
        return ctypes.c_float(value).value
    except OverflowError:  # of an int that no float64 holds
        return float("inf") if value > 0 else float("-inf")


def refusal(name: str, value: object, expected: str, subject: str = "") -> RequestError:
    """Return the error for a field whose value is not what was expected."""
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[: _SHOWN_CHARS - 1]}…"
    return RequestError(f"{subject or name} is {shown}; expected {expected}", name, expected, shown)


def _sequence(name: str, value: object, what: str) -> Sequence[object]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise refusal(name, value, f"a list of {what}")
    return value
