"""The JSON schema of an option's value in a file, from the option's declaration; and its check."""

from collections.abc import Mapping
from enum import EnumType
from types import UnionType
from typing import cast, get_args, get_origin

from baton.core.options import (
    Declared,
    File,
    Folder,
    FolderOrName,
    Number,
    ReadText,
    TokensOr,
    Values,
    Whole,
    Words,
)

Schema = dict[str, object]
_TYPES: dict[str, type | UnionType] = {"integer": int, "number": int | float, "string": str}
_PLAIN: dict[object, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
}


def kind_of(declared: Declared) -> object:
    """Return the type of one value: the field's without None, and of a tuple that of its parts."""
    kind = declared.kind
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    if isinstance(kind, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


def is_flag(declared: Declared) -> bool:
    return declared.option.values is None and kind_of(declared) is bool


def takes_several(declared: Declared) -> bool:
    """Return true if the option may be given several times: one text may name several values."""
    one_text = isinstance(declared.option.values, ReadText)
    return get_origin(declared.kind) is tuple and not one_text


def schema_of(declared: Declared) -> Schema:
    """Return the schema of what a file may say for an option: one value, or a list of them where
    the option may be given several times, or names several values in one text.
    """
    one = _schema_of_one(declared)
    if get_origin(declared.kind) is tuple:
        return {"anyOf": [one, {"type": "array", "items": one}]}
    return one


def _schema_of_one(declared: Declared) -> Schema:
    values: Values | None = declared.option.values
    match values:
        case Whole(least, most):
            return {"type": "integer"} | _bounds(least, most)
        case Number():
            return _number(values)
        case Words(meanings):
            return {"enum": list(meanings)}
        case TokensOr(words):
            return {"anyOf": [{"enum": list(words)}, {"type": "integer", "minimum": 1}]}
        case File() | Folder() | FolderOrName() | ReadText():
            return {"type": "string"}
    kind = kind_of(declared)
    if isinstance(kind, EnumType):
        return {"enum": [str(each) for each in cast("list[object]", list(kind))]}
    return dict(_PLAIN.get(kind, {"type": "string"}))


def _number(values: Number) -> Schema:
    found: Schema = {"type": "number"} | _bounds(values.least, values.most)
    if values.above:
        found["exclusiveMinimum"] = found.pop("minimum")
    if values.over:
        found.pop("minimum", None)
        return {"anyOf": [{"enum": [0]}, found | {"exclusiveMinimum": values.over}]}
    return found


def _bounds(least: float | None, most: float | None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    return {name: bound for name, bound in bounds.items() if bound is not None}


def is_valid(value: object, schema: Mapping[str, object]) -> bool:
    """Return whether a value has a schema that `schema_of` returned."""
    if "anyOf" in schema:
        return any(is_valid(value, each) for each in cast("list[Schema]", schema["anyOf"]))
    if "enum" in schema:
        return not isinstance(value, bool) and value in cast("list[object]", schema["enum"])
    wanted = schema["type"]
    if wanted == "array":
        each = cast("Schema", schema["items"])
        return isinstance(value, list) and all(is_valid(item, each) for item in value)
    if wanted == "boolean" or isinstance(value, bool):
        return wanted == "boolean" and isinstance(value, bool)
    if wanted == "integer" and isinstance(value, float) and value.is_integer():
        return _in_bounds(value, schema)
    if not isinstance(value, _TYPES[str(wanted)]):
        return False
    return isinstance(value, str) or _in_bounds(cast("float", value), schema)


def _in_bounds(value: float, schema: Mapping[str, object]) -> bool:
    bound = cast("Mapping[str, float]", schema)
    return (
        value >= bound.get("minimum", value)
        and value <= bound.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > bound["exclusiveMinimum"])
    )


def words_for(schema: Mapping[str, object]) -> str:
    """Return in words what values a schema has."""
    if "anyOf" in schema:
        return ", or ".join(map(words_for, cast("list[Schema]", schema["anyOf"])))
    if "enum" in schema:
        several = cast("list[object]", schema["enum"])
        named = ", ".join(map(str, several))
        return f"one of {named}" if len(several) > 1 else named
    if schema["type"] == "array":
        return f"a list, each {words_for(cast('Schema', schema['items']))}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "a text",
        "boolean": "true or false",
    }
    return words[str(schema["type"])] + _words_for_bounds(schema)


def _words_for_bounds(schema: Mapping[str, object]) -> str:
    names = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to"}
    return "".join(f" {word} {schema[name]}" for name, word in names.items() if name in schema)
