"""Random JSON schemas, and values that often follow them."""

import random
from typing import Any

TEXTS = ["", "a", "ab", "abc", "x", "foo", "日本", "1", "2024-01-01"]
NAMES = ["a", "b", "c"]
PLAIN: list[Any] = [
    {"type": "string"}, {"type": "string", "minLength": 2}, {"type": "string", "maxLength": 1},
    {"type": "string", "pattern": "^a"}, {"enum": ["a", "ab", 1, None]}, {"const": 1}, {},
    {"type": "string", "format": "date"}, {"type": "string", "format": "color"}, True,
    {"type": "string", "pattern": "[a&~]"}, {"type": "integer"}, {"type": "integer", "minimum": 2},
    {"type": "integer", "exclusiveMaximum": 1}, {"type": "integer", "multipleOf": 2},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63}, {"type": "null"},
    {"type": "number", "maximum": 1.5}, {"type": "number", "minimum": -1.7976931348623157e308},
    {"type": ["string", "null"]}, {"type": "boolean"}, {"type": ["integer", "array"]},
]  # fmt: skip
NAME_RULES: list[Any] = [
    {"enum": ["a", "b"]}, {"pattern": "^[ab]"}, {"minLength": 1}, {"maxLength": 1}, {"const": "a"},
]  # fmt: skip
REFUSED: list[Any] = [
    {"type": "string"}, {"type": ["number", "null"]}, {"type": "integer"}, {"const": 1},
]  # fmt: skip


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kind = rng.randrange(8)
    if depth == 0 or kind < 3:
        return _object(rng, depth)
    if kind == 3:
        return _array(rng, depth)
    if kind == 4:
        return {"allOf": [_inner(rng, depth), _inner(rng, depth)]}
    if kind == 5:
        return {"anyOf": [_inner(rng, depth), _inner(rng, depth)]}
    if kind == 6:
        return {"oneOf": [_inner(rng, depth) for _ in range(rng.randint(1, 3))]}
    return {"not": rng.choice(REFUSED)} | rng.choice([{}, {"type": ["string", "integer"]}])


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth else 4) if depth < 2 else 4 + rng.randrange(5)
    if kind < 3:
        names = sorted(rng.sample([*NAMES, "d"], rng.randint(0, 3)))
        return {name: random_value(rng, depth + 1) for name in names}
    if kind == 3:
        return [random_value(rng, depth + 1) for _ in range(rng.randint(0, 2))]
    return rng.choice([*TEXTS, 0, 1, 2, 3, -1, 10, 0.5, 1.5, None, True, False])


def _inner(rng: random.Random, depth: int) -> Any:
    if depth > 2 or rng.random() < 0.5:
        return rng.choice(PLAIN)
    return random_schema(rng, depth + 1)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    makers: list[tuple[float, str, Any]] = [
        (0.8, "properties", lambda: {n: _inner(rng, depth) for n in _some(rng, 1)}),
        (0.4, "required", lambda: _some(rng, 0)),
        (0.2, "additionalProperties", lambda: False),
        (0.1, "additionalProperties", lambda: _inner(rng, depth)),
        (0.2, "unevaluatedProperties", lambda: False),
        (0.15, "dependentRequired", lambda: {rng.choice(NAMES): _some(rng, 1)}),
        (0.1, "dependentSchemas", lambda: {rng.choice(NAMES): _inner(rng, depth)}),
        (0.15, "propertyNames", lambda: rng.choice(NAME_RULES)),
        (0.1, "minProperties", lambda: rng.randint(0, 2)),
        (0.1, "maxProperties", lambda: rng.randint(0, 2)),
        (0.1, "patternProperties", lambda: {"^a": _inner(rng, depth)}),
        (0.1, "allOf", lambda: [_inner(rng, depth)]),
        (0.1, "anyOf", lambda: [_inner(rng, depth), _inner(rng, depth)]),
    ]
    for chance, keyword, make in makers:
        if rng.random() < chance:
            schema[keyword] = make()
    return schema


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    makers: list[tuple[float, str, Any]] = [
        (0.6, "items", lambda: _inner(rng, depth)),
        (0.3, "prefixItems", lambda: [_inner(rng, depth)]),
        (0.3, "minItems", lambda: 1),
        (0.3, "maxItems", lambda: 1),
        (0.2, "uniqueItems", lambda: True),
        (0.2, "contains", lambda: rng.choice([{}, {"type": "string"}])),
        (0.2, "unevaluatedItems", lambda: False),
    ]
    for chance, keyword, make in makers:
        if rng.random() < chance:
            schema[keyword] = make()
    return schema


def _some(rng: random.Random, least: int) -> list[str]:
    return rng.sample(NAMES, rng.randint(least, 2))
