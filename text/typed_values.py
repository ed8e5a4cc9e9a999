"""The values of parameters that a model writes as plain text, typed by the tool's schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from baton.text.python_literals import Value, read_literal, read_number
from baton.text.tool_calls import read_json

_MOST_SCHEMAS = 256
"""The most schemas that are looked at for one value: unions may hold each other."""
_NULLS = {"null", "None"}
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")
"""The order in which the types of a union are tried: every text is a string."""


def typed_value(text: str, key: str, parameters: Mapping[str, Any]) -> Value:
    """Return the value of parameter `key` that `text` means.

    parameters: the schema of all of the tool's arguments. A text that no type of the parameter's
    allows is JSON where it can be, and else stays text.
    """
    types, literals = allowed_values(key, parameters)
    if text in literals:
        return text
    bare = text.strip()
    for literal in literals:
        if _means(bare, literal):
            return literal
    if literals and not types and bare in literals:
        return bare
    for name in _ORDER:
        if name in types:
            try:
                return _as_type(text, name)
            except ValueError:
                pass
    return text if literals and all(isinstance(each, str) for each in literals) else _free(text)


def allowed_values(key: str, parameters: Mapping[str, Any]) -> tuple[set[str], list[Value]]:
    """Return the types of a parameter, and the values that it may be where they are listed.

    parameters: the schema of all of the tool's arguments
    """
    schema = properties_of(parameters).get(key)
    types: set[str] = set()
    literals: list[Value] = []
    for each in _united(schema, parameters):
        if "const" in each or isinstance(each.get("enum"), list):
            literals += each["enum"] if isinstance(each.get("enum"), list) else [each["const"]]
            continue
        named = each.get("type")
        types.update(name for name in (named if isinstance(named, list) else [named]) if name)
    return types, literals


def properties_of(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name, also where the schema of all of them is a
    reference into itself."""
    schema: object = parameters
    for _ in range(_MOST_SCHEMAS):
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        if isinstance(properties, Mapping):
            return properties
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            break
        schema = _target(reference, parameters)
    return {}


def _united(schema: object, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas whose types and values are allowed: those that references and unions lead
    to."""
    waiting, seen = [schema], 0
    while waiting and seen < _MOST_SCHEMAS:
        each = waiting.pop(0)
        seen += 1
        if not isinstance(each, Mapping):
            continue
        if isinstance(each.get("$ref"), str):
            waiting.append(_target(each["$ref"], root))
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(each.get(union), list):
                waiting += each[union]
        yield each


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """Return the schema that a reference within the tool's schema leads to; None if none is."""
    found: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None


def _means(text: str, literal: Value) -> bool:
    """Return whether a text is a spelling of a value that is no text."""
    if literal is None or isinstance(literal, str):
        return literal is None and text in _NULLS
    if isinstance(literal, bool):
        return _BOOLEANS.get(text) is literal
    try:
        found = read_literal(text)
    except ValueError:
        return False
    return not isinstance(found, bool) and found == literal


def _as_type(text: str, name: str) -> Value:
    """Return the value of one type. Raises ValueError."""
    bare = text.strip()
    match name:
        case "null" if bare in _NULLS:
            return None
        case "integer":
            number = read_number(bare)
            if number == int(number):
                return int(number)
        case "number":
            return read_number(bare)
        case "boolean" if bare in _BOOLEANS:
            return _BOOLEANS[bare]
        case "object" | "array":
            value = read_literal(text)
            if isinstance(value, dict if name == "object" else list):
                return value
        case "string":
            return text
    raise ValueError(f"no {name}")


def _free(text: str) -> Value:
    """Return the value of a text of no known type: JSON, or an object, list or word of Python's."""
    try:
        found: Value = read_json(text)
    except ValueError:
        try:
            found = read_literal(text)
        except ValueError:
            return text
        return text if isinstance(found, str | float) or type(found) is int else found
    return found
