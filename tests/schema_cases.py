"""Keywords of JSON schemas, each with answers that follow it and answers that do not."""

from dataclasses import dataclass
from typing import Any

MAX_DOUBLE = 1.7976931348623157e308


@dataclass(frozen=True)
class SchemaCase:
    """One keyword at work. Each answer in `bad` breaks the schema, each in `good` follows it."""

    schema: dict[str, Any]
    good: list[Any]
    bad: list[Any]


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


INT, TEXT = {"type": "integer"}, {"type": "string"}
CLOSED = {"additionalProperties": False}

ENFORCED = {
    "type": SchemaCase({"type": ["integer", "null"]}, [1, None], ["a", True, 1.5, {}, []]),
    "enum": SchemaCase({"enum": [1, "a", None]}, [1, "a", None], [2, "b", True]),
    "const": SchemaCase({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}, {}, 1]),
    "minLength": SchemaCase(TEXT | {"minLength": 2}, ["日本", "😀😀"], ["", "é", "😀"]),
    "maxLength": SchemaCase(TEXT | {"maxLength": 2}, ["", "日本", "a\n"], ["日本語", "abc"]),
    "pattern": SchemaCase(TEXT | {"pattern": "^a+$"}, ["a", "aa"], ["", "b", "ab"]),
    "minimum": SchemaCase(INT | {"minimum": 3}, [3, 40], [2, -5]),
    "maximum": SchemaCase({"type": "number", "maximum": 1.5}, [1.5, -3, 0.25], [1.6, 20]),
    "exclusiveMinimum": SchemaCase(INT | {"exclusiveMinimum": 3}, [4], [3, 0]),
    "exclusiveMaximum": SchemaCase(INT | {"exclusiveMaximum": 3}, [2, -9], [3, 10]),
    "multipleOf": SchemaCase(INT | {"multipleOf": 5}, [0, 25, -5], [7, 21]),
    "items": SchemaCase({"type": "array", "items": INT}, [[], [1, 2]], [["a"], [1, None]]),
    "prefixItems": SchemaCase(
        {"type": "array", "prefixItems": [INT, TEXT], "items": False},
        [[1, "a"], [1], []], [["a"], [1, 2], [1, "a", 3]],
    ),
    "minItems": SchemaCase({"type": "array", "minItems": 2}, [[1, 2]], [[], [1]]),
    "maxItems": SchemaCase({"type": "array", "maxItems": 1}, [[], [1]], [[1, 2]]),
    "properties": SchemaCase(obj(a=INT), [{}, {"a": 1}, {"b": "x"}], [{"a": "x"}, {"a": None}]),
    "required": SchemaCase(obj(a=INT) | {"required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]),
    "additionalProperties": SchemaCase(
        obj(a=INT) | {"additionalProperties": TEXT},
        [{"a": 1, "b": "x"}], [{"b": 1}, {"a": 1, "c": None}],
    ),
    "patternProperties": SchemaCase(
        {"type": "object", "patternProperties": {"^x": INT, "^y": TEXT}} | CLOSED,
        [{"x1": 1, "y": "a"}, {}], [{"x1": "a"}, {"y1": 1}, {"z": 1}],
    ),
    "allOf": SchemaCase(
        {"allOf": [obj(a=INT), obj(b=TEXT) | {"required": ["b"]}]},
        [{"a": 1, "b": "x"}, {"b": "x"}], [{"a": 1}, {"a": "x", "b": "x"}, {"b": 1}],
    ),
    "anyOf": SchemaCase({"anyOf": [INT, {"type": "null"}]}, [1, None], ["a", [], 1.5]),
    "$ref": SchemaCase(
        {"$ref": "#/$defs/a%20b~1c", "maxLength": 3, "$defs": {"a b/c": TEXT | {"minLength": 2}}},
        ["ab", "abc"], ["a", "abcd", 1],
    ),
}  # fmt: skip
"""Keywords that llguidance has."""

FORMATS = {
    "date-time": ("2024-01-01T10:00:00Z", "2024-01-01"), "date": ("2024-02-29", "2024-13-01"),
    "time": ("10:00:00Z", "25:00:00Z"), "duration": ("P1DT2H", "1D"), "email": ("a@b.co", "ab"),
    "hostname": ("a.example", "-a"), "ipv4": ("1.2.3.4", "1.2.3.256"), "ipv6": ("::1", "::g"),
    "uuid": ("12345678-1234-1234-1234-123456789abc", "1234"), "uri": ("https://a.b/c", "no"),
    "json-pointer": ("/a/~0b", "a"), "relative-json-pointer": ("1/a", "/a"),
}  # fmt: skip
"""Enforced formats, each with a text that has it and one that has not."""

_KIND_A = obj(kind={"const": "a"}, v=INT) | {"required": ["kind"]}
_KIND_B = obj(kind={"enum": ["b", "c"]}, v=TEXT) | {"required": ["kind"]}
REWRITTEN = {
    "oneOf of types": SchemaCase(
        {"oneOf": [INT, TEXT, {"type": "null"}]}, [1, "a", None], [1.5, []],
    ),
    "oneOf with a discriminator": SchemaCase(
        {"oneOf": [_KIND_A, _KIND_B]},
        [{"kind": "a", "v": 1}, {"kind": "c", "v": "x"}],
        [{"kind": "a", "v": "x"}, {"kind": "d"}, {"v": 1}],
    ),
    "oneOf of what the others refuse": SchemaCase(
        {"oneOf": [obj(a=INT) | CLOSED | {"required": ["a"]},
                   obj(b=INT) | CLOSED | {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}, {"a": "x"}],
    ),
    "oneOf of ranges": SchemaCase(
        {"oneOf": [INT | {"maximum": 3}, INT | {"minimum": 3, "exclusiveMinimum": True}]},
        [3, 4, -1], ["a", 1.5],
    ),
    "oneOf of one": SchemaCase({"oneOf": [INT]}, [1], ["a"]),
    "oneOf beside anyOf": SchemaCase(
        {"anyOf": [INT, TEXT], "oneOf": [TEXT, {"type": "null"}]}, ["a"], [1, None],
    ),
    "not of types": SchemaCase({"not": {"type": ["string", "array"]}}, [1, None, {}], ["a", []]),
    "not of everything": SchemaCase({"anyOf": [INT, {"not": {}}]}, [1], ["a", None]),
    "propertyNames of a string": SchemaCase(
        {"type": "object", "propertyNames": TEXT, "additionalProperties": INT},
        [{"a": 1}], [{"a": "x"}],
    ),
    "propertyNames by a list": SchemaCase(
        {"type": "object", "propertyNames": {"enum": ["a", "b.c"]}, "additionalProperties": INT},
        [{"a": 1}, {"b.c": 2}, {}], [{"c": 1}, {"a": "x"}, {"bxc": 1}],
    ),
    "propertyNames by a pattern": SchemaCase(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}}, [{"ab": "x"}], [{"A": 1}],
    ),
    "propertyNames by length": SchemaCase(
        obj(a=INT, long=INT) | {"propertyNames": {"maxLength": 2}},
        [{"a": 1, "bc": "x"}, {}], [{"long": 1}, {"abc": 1}],
    ),
    "propertyNames by reference": SchemaCase(
        {"type": "object", "propertyNames": {"$ref": "#/$defs/k"}, "$defs": {"k": {"enum": ["a"]}}},
        [{"a": 1}], [{"b": 1}],
    ),
    "dependentRequired": SchemaCase(
        obj(a=INT, b=INT) | {"dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}],
    ),
    "dependentSchemas": SchemaCase(
        obj(a=INT, b={}) | {"dependentSchemas": {"a": obj(b=INT) | {"required": ["b"]}}},
        [{}, {"b": "x"}, {"a": 1, "b": 1}], [{"a": 1}, {"a": 1, "b": "x"}],
    ),
    "dependencies": SchemaCase(
        obj(a=INT, b=INT) | {"dependencies": {"a": ["b"]}},
        [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}],
    ),
    "unevaluatedProperties": SchemaCase(
        obj(a=INT) | {"unevaluatedProperties": False}, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}],
    ),
    "unevaluatedProperties beside allOf": SchemaCase(
        {"allOf": [obj(a=INT), {"$ref": "#/$defs/b"}], "unevaluatedProperties": False,
         "$defs": {"b": obj(b=TEXT)}},
        [{}, {"a": 1, "b": "x"}], [{"c": 1}, {"a": 1, "b": 2}],
    ),
    "unevaluatedItems": SchemaCase(
        {"type": "array", "prefixItems": [INT], "unevaluatedItems": False},
        [[], [1]], [[1, 2], ["a"]],
    ),
    "contains anything": SchemaCase({"type": "array", "contains": {}}, [[1]], [[]]),
    "uniqueItems of one": SchemaCase(
        {"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 2]],
    ),
    "minProperties of required ones": SchemaCase(
        obj(a=INT) | {"required": ["a"], "minProperties": 1}, [{"a": 1}], [{}],
    ),
    "maxProperties of all": SchemaCase(
        obj(a=INT, b=INT) | CLOSED | {"maxProperties": 2}, [{"a": 1, "b": 1}], [{"c": 1}],
    ),
    "bounds of doubles": SchemaCase(
        {"type": "number", "minimum": -MAX_DOUBLE, "maximum": MAX_DOUBLE}, [1e300, -2.5], ["a"],
    ),
    "bounds of 64 bits": SchemaCase(
        INT | {"minimum": -(2**63), "maximum": 2**63 - 1},
        [0, -(10**18), 2**63 - 1], [2**63, -(10**19), 1.5],
    ),
    "a tiny bound": SchemaCase(
        {"type": "number", "exclusiveMinimum": 5e-324}, [0.5, 1], [0, -1],
    ),
    "booleans of draft 4": SchemaCase(
        INT | {"minimum": 3, "exclusiveMinimum": True}, [4], [3, 2],
    ),
    "tuples of draft 7": SchemaCase(
        {"type": "array", "items": [INT], "additionalItems": TEXT}, [[1, "a"], []], [["a"], [1, 2]],
    ),
    "names of types": SchemaCase(
        obj(a={"type": "str"}, b={"type": "INTEGER"}, c={"type": "any"}, d={"type": "dict"}),
        [{"a": "x", "b": 1, "c": None, "d": {}}], [{"a": 1}, {"b": "x"}, {"d": 1}],
    ),
    "$id": SchemaCase(
        {"$id": "https://e.org/s", "$schema": "http://e.org/unknown", "$defs": {"A": TEXT},
         **obj(a={"$ref": "#/$defs/A"}, b={"$ref": "https://e.org/s#/$defs/A"})},
        [{"a": "x", "b": "y"}], [{"a": 1}, {"b": 1}],
    ),
    "$id of a part": SchemaCase(
        {"$id": "https://e.org/s", "$defs": {"A": {"$id": "part", "$ref": "#/$defs/B",
                                                   "$defs": {"B": TEXT}}, "B": INT},
         **obj(a={"$ref": "part"}, b={"$ref": "#/$defs/B"})},
        [{"a": "x", "b": 1}], [{"a": 1}, {"b": "x"}],
    ),
    "$anchor": SchemaCase(
        {"$defs": {"A": TEXT | {"$anchor": "a"}}, **obj(a={"$ref": "#a"})},
        [{"a": "x"}], [{"a": 1}],
    ),
    "$dynamicRef": SchemaCase(
        obj(v=INT, next={"$dynamicRef": "#n"}) | {"$dynamicAnchor": "n"},
        [{"v": 1, "next": {"v": 2}}], [{"next": {"v": "x"}}, {"next": 1}],
    ),
    "a reference to a property": SchemaCase(
        obj(a=INT, b={"$ref": "#/properties/a"}), [{"a": 1, "b": 1}], [{"b": "x"}],
    ),
    "a reference to where no schemas are": SchemaCase(
        {"components": {"schemas": {"A": {"oneOf": [INT]}}},
         **obj(a={"$ref": "#/components/schemas/A"})},
        [{"a": 1}], [{"a": "x"}],
    ),
    "Decimal of pydantic": SchemaCase(
        TEXT | {"pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}, ["-1.5", ".5", "2."], ["", "-", "x"],
    ),
    "signs in a set": SchemaCase(TEXT | {"pattern": "^[a&&[]+$"}, ["a", "&["], ["b", ""]),
}  # fmt: skip
"""Schemas that llguidance refuses or misreads, and that others say in full."""

NAMED = {
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": INT},
    "if": {"if": TEXT, "then": {"minLength": 3}},
    "not": {"not": {"const": 3}},
    "oneOf": {"oneOf": [{"type": "number"}, INT]},
    "pattern": TEXT | {"pattern": "^(?!x)[a-z]+$"},
    "format": TEXT | {"format": "uri-reference"},
    "type": {"type": "file"},
    "enum": {"enum": []},
    "multipleOf": INT | {"multipleOf": 1_000_000_007},
    "minimum": {"type": "number", "minimum": 1e300},
    "maxProperties": obj(a=INT, b=INT) | {"maxProperties": 1},
    "minProperties": obj(a=INT, b=INT) | {"minProperties": 1},
    "propertyNames": {"type": "object", "propertyNames": {"format": "uuid"}},
    "patternProperties": {"type": "object", "patternProperties": {"^(?!x)": INT}},
    "dependentRequired": {"type": "object", "dependentRequired": {n: ["z"] for n in "abcde"}},
    "unevaluatedProperties": {"anyOf": [obj(a=INT), obj(b=INT)], "unevaluatedProperties": False},
    "unevaluatedItems": {"allOf": [{"prefixItems": [INT]}], "unevaluatedItems": False},
    "$ref": {"$ref": "https://e.org/other.json"},
}  # fmt: skip
"""Keywords that nothing enforces: each of these schemas is taken without its keyword."""
