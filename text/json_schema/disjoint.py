"""The test for schemas that no answer can both follow: `oneOf` of such schemas is `anyOf`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from baton.text.json_schema.effort import Effort
from baton.text.json_schema.keywords import Json, Schema, schemas_of, texts
from baton.text.json_schema.references import References
from baton.text.json_schema.scalars import TYPES, number

_DEPTH = 4
_PARTS = 16


@dataclass(frozen=True)
class Values:
    """The values that a schema lists."""

    texts: frozenset[str]  # equal if the values are
    types: frozenset[str]


class Disjointness:
    """A test of pairs of schemas of one document. It gives up after a bounded number of steps."""

    def __init__(self, references: References, effort: Effort) -> None:
        self._references = references
        self._effort = effort
        self._values_of: dict[int, Values] = {}  # by the id() of a schema

    def all_apart(self, options: list[Json], around: Schema) -> bool:
        """Return True if no answer follows two of the options. around: the schema that has them."""
        shared = self._types([around])
        parts = [self._parts(option) for option in options]
        return all(
            self._apart(one, other, shared, _DEPTH)
            for number, one in enumerate(parts)
            for other in parts[:number]
        )

    def _apart(self, one: list[Schema], other: list[Schema], shared: set[str], depth: int) -> bool:
        if not depth or not self._effort.take(1):
            return False
        types = shared & self._types(one) & self._types(other)
        if not types:
            return True
        values, others = self._values(one), self._values(other)
        if values is not None and others is not None:
            return not values.texts & others.texts
        if any(known is not None and not known.types & types for known in (values, others)):
            return True
        if types == {"object"}:
            return self._objects_apart(one, other, depth)
        return types <= {"integer", "number"} and _ranges_apart(one, other)

    def _objects_apart(self, one: list[Schema], other: list[Schema], depth: int) -> bool:
        required, others = _required(one), _required(other)
        if not self._effort.take(len(required) + len(others)):
            return False
        if any(_refuses(other, name) for name in required):
            return True
        if any(_refuses(one, name) for name in others):
            return True
        for name in required:
            if name in others:
                mine, theirs = self._member(one, name), self._member(other, name)
                if mine and theirs and self._apart(mine, theirs, set(TYPES), depth - 1):
                    return True
        return False

    def _values(self, parts: list[Schema]) -> "Values | None":
        """Return the only values that schemas allow; None if there may be any number."""
        for part in parts:
            listed = [part["const"]] if "const" in part else part.get("enum")
            if isinstance(listed, list) and listed:
                found = self._values_of.get(id(part))
                if found is None:
                    shown = frozenset(map(_text_of, listed))
                    found = Values(shown, frozenset(map(_type_of, shown)))
                    self._values_of[id(part)] = found
                return found if self._effort.take(len(found.texts) // 16) else None
        return None

    def _member(self, parts: list[Schema], name: str) -> list[Schema]:
        """Return what a member must follow."""
        found: list[Schema] = []
        for part in parts:
            found += self._parts(schemas_of(part.get("properties")).get(name))
        return found

    def _parts(self, schema: Json) -> list[Schema]:
        """Return schemas that an answer must all follow."""
        found: list[Schema] = []
        waiting: list[Json] = [schema]
        while waiting and len(found) < _PARTS:
            each = waiting.pop()
            if isinstance(each, dict):
                found.append(each)
                more = each.get("allOf")
                waiting += more if isinstance(more, list) else ()
                waiting.append(self._references.target(each))
        return found

    def _types(self, parts: list[Schema]) -> set[str]:
        """Return the types that an answer may have. Each integer is a number too."""
        found = set(TYPES)
        for part in parts:
            named = part.get("type")
            names = {named} if isinstance(named, str) else set(texts(named))
            if names and names <= TYPES:
                found &= names | ({"integer"} if "number" in names else set())
        return found


def _required(parts: list[Schema]) -> dict[str, None]:
    return dict.fromkeys(name for part in parts for name in texts(part.get("required")))


def _refuses(parts: list[Schema], name: str) -> bool:
    """Return True if an object may not have this member."""
    for part in parts:
        properties = schemas_of(part.get("properties"))
        closed = part.get("additionalProperties") is False and "patternProperties" not in part
        if properties.get(name, not closed) is False:
            return True
    return False


def _text_of(value: Json) -> str:
    """Return a text that two values have in common if they are equal in JSON."""
    plain = json.loads(json.dumps(value), parse_float=_whole)
    return json.dumps(plain, sort_keys=True)


def _whole(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value


def _type_of(text: str) -> str:
    for begin, name in (('"', "string"), ("{", "object"), ("[", "array"), ("n", "null")):
        if text.startswith(begin):
            return name
    if text in ("true", "false"):
        return "boolean"
    return "number" if set(text) & set(".eENI") else "integer"


def _ranges_apart(one: list[Schema], other: list[Schema]) -> bool:
    """Return True if all numbers of one are smaller than all of the other."""
    return any(
        high < low or (high == low and (open_high or open_low))
        for a, b in ((one, other), (other, one))
        for high, open_high in _bounds(a, "aximum")
        for low, open_low in _bounds(b, "inimum")
    )


def _bounds(parts: list[Schema], side: str) -> Iterator[tuple[int | float, bool]]:
    for part in parts:
        inclusive, exclusive = number(part.get(f"m{side}")), number(part.get(f"exclusiveM{side}"))
        if inclusive is not None:
            yield inclusive, part.get(f"exclusiveM{side}") is True
        if exclusive is not None:
            yield exclusive, True
