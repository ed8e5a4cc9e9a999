"""The check of a body's field names, before its values are read: nothing is left out in silence."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from pydantic_core import PydanticCustomError

from baton.api.errors import shorten
from baton.api.fields.field_table import UNREAD_FIELDS, FieldClass, FieldPlace, FieldUse

REFUSED = "request_field"
"""The type of the errors of this module, whose context has `field`, `why` and `expected`."""
_COMPARED_CHARS = 64  # of a name that is nobody's, which may be a megabyte long
_LONG = 6
BY_PLACE: dict[FieldPlace, dict[str, FieldUse]] = {
    place: dict(UNREAD_FIELDS[place]) for place in FieldPlace
}
"""All known fields. The classes of bodies add theirs as they are defined."""

_CARRIED: dict[FieldPlace, list[str]] = {}
LABEL_CHARS = 512
"""The most characters of a label: as many as OpenAI allows for a value of `metadata`."""


class UnknownFields(StrEnum):
    """The treatment of fields that nobody knows."""

    REFUSE = "refuse"
    WARN = "warn"  # left out and named; but refused if it looks like a misspelling
    IGNORE = "ignore"  # left out, whatever it looks like


@dataclass(frozen=True)
class FieldCheck:
    """The check of one body: the rule, and what was left out."""

    policy: UnknownFields = UnknownFields.REFUSE
    ignored: dict[str, None] = field(default_factory=dict)  # the names, in their order

    def leave_out(self, name: str, place: FieldPlace | None = None) -> None:
        """Note a field, or another part of the body, that is not read."""
        inner = "" if place is None else place.value.partition(": ")[2]
        self.ignored[shorten(f"{inner}.{name}" if inner else name)] = None


def add_fields(place: FieldPlace, uses: Mapping[str, FieldUse]) -> None:
    """Add the fields that a body's class reads."""
    known = BY_PLACE[place]
    known |= uses
    _CARRIED[place] = [name for name, use in known.items() if use.carried]


def given_fields(
    data: Mapping[str, Any], place: FieldPlace | None, own: Collection[str], check: FieldCheck
) -> dict[str, Any]:
    """Return those of a body's fields that its class reads. A null is the same as no field.

    place: None for a body that is not in the table; then `own` are all fields that it may have.
    own: the names that the class reads. Raises PydanticCustomError for a field that is unknown, or
    known and not supported with its value. `check` says which of them are left out instead.
    """
    known = {} if place is None else BY_PLACE[place]
    kept: dict[str, Any] = {}
    for name, value in data.items():
        if value is None:
            if name not in known and name not in own:
                _unknown(name, place, [*known, *own], check)
            continue
        row = known.get(name)
        if row is not None and row.kind is not FieldClass.WORKS and not row.takes(value):
            if row.kind is not FieldClass.EXTRA or check.policy is UnknownFields.REFUSE:
                raise _not_supported(name, row)
            check.leave_out(name, place)
        elif name in own:
            kept[name] = value
        elif row is None:
            _unknown(name, place, [*known, *own], check)
    return kept


def labels_in(data: Mapping[str, Any], place: FieldPlace | None) -> dict[str, str]:
    """Return the carried fields of a body as texts; other values than texts as JSON.

    A text is cut to `LABEL_CHARS` characters.
    """
    known = {} if place is None else _CARRIED[place]
    found: dict[str, str] = {}
    for name in known:
        value = data.get(name)
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            found[name] = text if len(text) <= LABEL_CHARS else f"{text[: LABEL_CHARS - 1]}…"
    return found


def _not_supported(name: str, use: FieldUse) -> PydanticCustomError:
    if use.kind is FieldClass.LABEL:
        allowed = ", ".join(json.dumps(value) for value in use.values)
        return _refusal(name, f"expected {allowed}, or leave it out", allowed)
    neutral = f" or send {json.dumps(use.values[0])}" if use.values else ""
    return _refusal(name, f"{name} is {use.goes}; leave it out{neutral}", "nothing")


def misspelt(name: str, known: Collection[str]) -> str | None:
    """Return the known name that `name` looks like a misspelling of: one letter away, or two if it
    has six letters or more."""
    most = 1 if len(name) < _LONG else 2
    return next((each for each in known if 0 < edits_between(name, each, most) <= most), None)


def edits_between(one: str, other: str, most: int) -> int:
    """Return the fewest letters to add, drop, change or swap; `most` + 1 if there are more."""
    if abs(len(one) - len(other)) > most:
        return most + 1
    before, row = list[int](), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, before, row = before, row, [i]
        for j, each in enumerate(other, 1):
            found = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != each))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == each:
                found = min(found, last[j - 2] + 1)
            row.append(found)
    return min(row[-1], most + 1)


def _unknown(
    name: str, place: FieldPlace | None, known: Collection[str], check: FieldCheck
) -> None:
    if check.policy is UnknownFields.REFUSE:
        raise _refusal(shorten(name), *_advice(name, place, known))
    near = misspelt(name, known) if check.policy is UnknownFields.WARN else None
    if near is not None:
        raise _refusal(shorten(name), f"unknown field; did you mean {near}?", near)
    check.leave_out(name, place)


def _advice(name: str, place: FieldPlace | None, known: Collection[str]) -> tuple[str, str]:
    """Return what is said about an unknown field, and the name that was probably meant."""
    elsewhere = [other for other, fields in BY_PLACE.items() if name in fields]
    near = get_close_matches(name[:_COMPARED_CHARS], known, n=1)
    if near:
        return f"unknown field; did you mean {near[0]}?", near[0]
    if elsewhere and place is not None:
        return f"unknown field of {place}; it is one of {', '.join(elsewhere)}", elsewhere[0]
    return "unknown field; docs/requests.md lists those that are known", ""


def _refusal(field: str, why: str, expected: str) -> PydanticCustomError:
    return PydanticCustomError(REFUSED, "{why}", {"field": field, "why": why, "expected": expected})
