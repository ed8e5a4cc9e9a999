"""Schemas that an answer can both follow, and those that none can."""

import itertools
import json
import random
from typing import Any

import jsonschema
import pytest
from random_schemas import random_schema, random_value
from schema_cases import INT, TEXT, obj

from baton.text.json_schema.disjoint import Disjointness
from baton.text.json_schema.effort import Effort
from baton.text.json_schema.references import References

A, B = {"const": "a"}, {"enum": ["b", "c"]}


def apart(*options: Any, **around: Any) -> bool:
    schema = {"oneOf": [*options]} | around
    return Disjointness(References(schema), Effort()).all_apart(schema["oneOf"], schema)


def kind(value: Any, **more: Any) -> dict[str, Any]:
    return obj(kind=value, **more) | {"required": ["kind"]}


@pytest.mark.parametrize(
    "options",
    [
        [INT, TEXT, {"type": ["null", "array"]}],
        [{"enum": [1, "a"]}, {"enum": [2, "b"]}],
        [{"const": 1}, TEXT],
        [kind(A), kind(B)],
        [kind({"type": "string"}), kind(INT)],
        [kind(obj(x=A) | {"required": ["x"]}), kind(obj(x=B) | {"required": ["x"]})],
        [obj(a=INT) | {"required": ["a"]}, obj(b=INT) | {"additionalProperties": False}],
        [obj(a=INT) | {"required": ["a"]}, obj(a=False)],
        [INT | {"maximum": 3}, {"type": "number", "exclusiveMinimum": 3}],
        [{"allOf": [kind(A)]}, {"allOf": [kind(B)]}],
    ],
)
def test_some_schemas_have_no_answer_in_common(options: list[Any]) -> None:
    assert apart(*options)


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ([INT, {"type": "number"}], 1),
        ([{"enum": [1, "a"]}, {"enum": ["a", "b"]}], "a"),
        ([{"const": 1}, {"const": 1.0}], 1),
        ([{"const": [1, {"a": 2.0}]}, {"const": [1.0, {"a": 2}]}], [1, {"a": 2}]),
        ([{"const": 1}, {"enum": [True, 1]}], 1),
        ([{"const": {"a": 1, "b": 2}}, {"const": {"b": 2, "a": 1}}], {"a": 1, "b": 2}),
        ([obj(kind=A), obj(kind=B)], {}),
        ([kind(A), obj(kind=B)], None),
        ([{"properties": {"kind": A}, "required": ["kind"]},
          {"properties": {"kind": B}, "required": ["kind"]}], "no object"),
        ([kind({"enum": ["a", "b"]}), kind(B)], {"kind": "b"}),
        ([INT | {"maximum": 3}, INT | {"minimum": 3}], 3),
        ([{"maximum": 3}, {"minimum": 4}], "no number"),
        ([obj(a=INT) | {"required": ["a"]}, obj(b=INT) | {"required": ["b"]}], {"a": 1, "b": 1}),
        ([{}, {"type": "null"}], None),
        ([obj(a=INT) | {"required": ["a"]},
          obj(b=INT) | {"additionalProperties": False, "patternProperties": {"a": {}}}], {"a": 1}),
    ],
)  # fmt: skip
def test_schemas_with_an_answer_in_common_are_not_apart(options: list[Any], shared: Any) -> None:
    assert not apart(*options)
    fits = [jsonschema.Draft202012Validator(each).is_valid(shared) for each in options]
    assert all(fits) or shared is None


def test_what_stands_around_counts() -> None:
    options = [{"properties": {"kind": each}, "required": ["kind"]} for each in (A, B)]
    assert apart(*options, type="object")
    assert not apart(*options, type=["object", "null"])


def test_a_comparison_that_takes_too_long_ends() -> None:
    assert not apart(*(kind({"const": number}) for number in range(500)))
    assert not apart(*({"enum": [f"{n} {i}" for i in range(3000)]} for n in range(16)))


@pytest.mark.parametrize("seed", range(4))
def test_no_random_value_follows_two_schemas_that_are_apart(seed: int) -> None:
    rng = random.Random(seed)
    values = [random_value(rng) for _ in range(300)] + [1, "a", None, {}, [], True, 1.5]
    found = 0
    for _ in range(150):
        one, other = random_schema(rng, 1), random_schema(rng, 1)
        if apart(one, other):
            found += 1
            validators = [jsonschema.Draft202012Validator(each) for each in (one, other)]
            for value in values:
                assert not all(each.is_valid(value) for each in validators), (one, other, value)
    assert found > 10


def test_the_order_of_schemas_does_not_matter() -> None:
    rng = random.Random(0)
    schemas = [random_schema(rng, 1) for _ in range(25)]
    for one, other in itertools.combinations(schemas, 2):
        assert apart(one, other) is apart(other, one), json.dumps([one, other])
