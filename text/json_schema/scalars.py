"""Types, texts and numbers of a schema, in the form that llguidance takes."""

import math
from decimal import Decimal

from baton.text.grammar_limits import check_count, check_regex
from baton.text.json_schema.ecma_pattern import translated
from baton.text.json_schema.keywords import Json, Path, Schema
from baton.text.json_schema.notes import Notes, checked, wrong

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_OTHER_NAMES = {
    "str": "string", "text": "string", "int": "integer", "float": "number", "double": "number",
    "bool": "boolean", "dict": "object", "map": "object", "list": "array", "tuple": "array",
    "none": "null",
}  # fmt: skip
"""Names of types in Python and elsewhere, which clients write into schemas."""
_ANY = "any"
ENFORCED_FORMATS = frozenset({
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
FORMAT_PATTERNS = {
    "json-pointer": r"^(?:/(?:[^/~]|~[01])*)*$",
    "relative-json-pointer": r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",
}
"""Formats of JSON Schema that a pattern says in full."""
LEFT_OUT_FORMATS = frozenset({
    "idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-reference", "uri-template",
})  # fmt: skip
"""Formats of JSON Schema that nothing here enforces. Any other one is a remark: the standard gives
it no meaning."""
_ENDLESS = 1 << 31
"""A length that no answer reaches."""
_BOUND = 9.2e18
"""llguidance writes bounds of ranges as 64-bit integers."""
_BOUND_INTEGER = (1 << 63) - 1
_TINY = 1e-15
"""It writes smaller bounds as nested groups, digit by digit, deeper than its parser goes."""
_LARGEST = 1.7976931348623157e308
_MAX_MULTIPLE = 10**6
"""Digits of `multipleOf`, without point and zeros: larger ones exhaust llguidance's fuel."""


def types_of(given: Schema, path: Path, notes: Notes) -> list[str] | None:
    """Return the types that a schema names; None: any."""
    named = given.get("type")
    if named is None:
        return None
    found: list[str] = []
    for each in named if isinstance(named, list) else [named]:
        name = each.lower() if isinstance(each, str) else ""
        name = _OTHER_NAMES.get(name, name)
        if name == _ANY:
            return None
        if name not in TYPES:
            notes.leave_out("type", path)
            return None
        found += [name] * (name not in found)
    if not found:
        notes.leave_out("type", path)
    return found or None


def add_text_rules(given: Schema, made: Schema, path: Path, notes: Notes) -> None:
    """Add what a schema says of strings."""
    for keyword in ("minLength", "maxLength"):
        add_count(given, made, keyword, path)
    pattern = given.get("pattern")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise wrong(path, "pattern", "string")
        other = translated(pattern)
        if other is None:
            notes.leave_out("pattern", path)
        else:
            checked(path, "pattern", lambda: check_regex(other, "the pattern"))
            made["pattern"] = other
    form = given.get("format")
    if not isinstance(form, str):
        return
    if form in ENFORCED_FORMATS:
        made["format"] = form
    elif form in FORMAT_PATTERNS and "pattern" not in made:
        made["pattern"] = FORMAT_PATTERNS[form]
    elif form in FORMAT_PATTERNS or form in LEFT_OUT_FORMATS:
        notes.leave_out("format", path)


def add_count(given: Schema, made: Schema, keyword: str, path: Path) -> None:
    """Add a number of characters, items or properties. One that changes nothing is left out."""
    value = given.get(keyword)
    if value is None:
        return
    count = number(value)
    if count is None or count != count or (abs(count) != math.inf and count != int(count)):
        raise wrong(path, keyword, "whole number")
    least = keyword.startswith("min")
    if (least and count <= 0) or (not least and count >= _ENDLESS):
        return
    made[keyword] = whole = int(min(count, _ENDLESS))
    checked(path, keyword, lambda: check_count(keyword, whole))


def add_number_rules(
    given: Schema, made: Schema, path: Path, notes: Notes, *, integers: bool
) -> None:
    """Add what a schema says of numbers. integers: all of them are."""
    for side, sign in (("inimum", -1), ("aximum", 1)):
        inclusive, exclusive = f"m{side}", f"exclusiveM{side}"
        bound, other = given.get(inclusive), given.get(exclusive)
        if isinstance(other, bool):  # draft 4 says so of the other keyword's bound
            bound, other = (None, bound) if other else (bound, None)
        for keyword, value in ((inclusive, bound), (exclusive, other)):
            if value is not None:
                _add_bound(value, made, keyword, sign, path, notes, integers=integers)
    multiple = given.get("multipleOf")
    if multiple is not None:
        value = number(multiple)
        if value is None:
            raise wrong(path, "multipleOf", "number")
        if not math.isfinite(value) or value <= 0 or _digits(value) > _MAX_MULTIPLE:
            notes.leave_out("multipleOf", path)
        else:
            made["multipleOf"] = value


def number(value: Json) -> int | float | None:
    """Return a JSON number; None for anything else."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _digits(value: int | float) -> int:
    return int("".join(map(str, Decimal(str(value)).normalize().as_tuple().digits)))


def _add_bound(
    value: Json,
    made: Schema,
    keyword: str,
    sign: int,
    path: Path,
    notes: Notes,
    *,
    integers: bool,
) -> None:
    """Add a bound. One that is too large for llguidance becomes a narrower one.

    sign: 1 for an upper bound, -1 for a lower one
    """
    bound = number(value)
    if bound is None or bound != bound:
        raise wrong(path, keyword, "number")
    outwards = bound * sign  # how far from 0, in the direction that the bound allows
    most = _BOUND_INTEGER if integers and sign > 0 else _BOUND
    if outwards >= _LARGEST:
        return  # there is no larger double
    if outwards > most:
        made[keyword] = most * sign if isinstance(most, float) else most
    elif outwards < -_BOUND:
        notes.leave_out(keyword, path)
    elif 0 < abs(bound) < _TINY:
        made[keyword.replace("exclusiveM", "m") if outwards > 0 else keyword] = (
            0 if outwards > 0 else -_TINY * sign
        )
    else:
        made[keyword] = bound
