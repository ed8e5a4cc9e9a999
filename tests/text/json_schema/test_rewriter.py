"""Schemas of clients, from the text to the tokens that a grammar lets through."""

import json
import random
from typing import Any

import jsonschema
import pytest
import toy_tokenizer
from random_schemas import random_schema, random_value
from schema_cases import ENFORCED, FORMATS, INT, NAMED, REWRITTEN, TEXT, SchemaCase, obj

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError, SchemaError
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.json_schema.rewriter import MAX_DEPTH, MAX_VALUES, rewrite_schema
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

END = 1
PLACES = {
    "the root": (lambda schema: schema, lambda value: value),
    "properties": (lambda s: obj(p=s) | {"required": ["p"]}, lambda v: {"p": v}),
    "a property named like a keyword": (lambda s: obj(enum=s), lambda v: {"enum": v}),
    "items": (lambda s: {"type": "array", "items": s, "minItems": 1}, lambda v: [v]),
    "prefixItems": (lambda s: {"type": "array", "prefixItems": [s]}, lambda v: [v]),
    "additionalProperties": (
        lambda s: {"type": "object", "additionalProperties": s}, lambda v: {"any": v},
    ),
    "patternProperties": (
        lambda s: {"type": "object", "patternProperties": {"^q": s}}, lambda v: {"q1": v},
    ),
    "$defs": (
        lambda s: {"$defs": {"d": s}, **obj(r={"$ref": "#/$defs/d"})}, lambda v: {"r": v},
    ),
    "anyOf": (lambda s: {"anyOf": [s, {"const": "none of them"}]}, lambda v: v),
    "allOf": (lambda s: {"allOf": [s]}, lambda v: v),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    tokenizer = Tokenizer(toy_tokenizer.byte_level(), SpecialTokens())
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, {END})


def compiled(compiler: GrammarCompiler, schema: dict[str, Any], **more: Any) -> CompiledGrammar:
    text = json.dumps(rewrite_schema(schema, **more).whole())
    return compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, text))


def takes(compiler: GrammarCompiler, grammar: CompiledGrammar, value: Any) -> bool:
    """Return True if the grammar lets each token of a value through, and then the end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    state = grammar.start()
    for token in [*compiler._tokenizer.encode(text, add_special_tokens=False), END]:
        if state.ended:
            return token == END
        if not state.allowed()[token // 64] >> token % 64 & 1:
            return False
        state.push(token)
    return True


CASES = ENFORCED | REWRITTEN
CASES |= {
    f"format {name}": SchemaCase(TEXT | {"format": name}, [good], [bad])
    for name, (good, bad) in FORMATS.items()
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_what_breaks_a_schema_is_refused_wherever_the_schema_stands(
    compiler: GrammarCompiler, name: str, place: str
) -> None:
    case, (around, inside) = CASES[name], PLACES[place]
    if "#" in json.dumps(case.schema) and place != "the root":
        case = SchemaCase({"$id": "https://case.example/", **case.schema}, case.good, case.bad)
    rewritten = rewrite_schema(around(case.schema))
    assert not rewritten.unenforced
    grammar = compiled(compiler, around(case.schema))
    for value in case.good:
        assert takes(compiler, grammar, inside(value)), value
    for value in case.bad:
        assert not takes(compiler, grammar, inside(value)), value


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NAMED)
def test_what_cannot_be_enforced_is_left_out_and_named(
    compiler: GrammarCompiler, name: str, place: str
) -> None:
    named: Any = NAMED[name]
    schema = PLACES[place][0](named)
    found = rewrite_schema(schema).unenforced
    assert [each.keyword for each in found] == [name]
    at: Any = schema
    for part in found[0].pointer.split("/")[1:]:
        at = at[int(part)] if isinstance(at, list) else at[part]
    assert at == named[name]
    compiled(compiler, schema)


@pytest.mark.parametrize("seed", range(6))
def test_no_answer_breaks_a_random_schema(compiler: GrammarCompiler, seed: int) -> None:
    rng = random.Random(seed)
    checked = 0
    for _ in range(40):
        schema = random_schema(rng)
        rewritten = rewrite_schema(schema)
        text = json.dumps(rewritten.whole())
        try:
            grammar = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, text))
        except GrammarError as error:
            assert "no text fits" in str(error) or "nsatisfiable" in str(error), schema
            continue
        formats = jsonschema.FormatChecker(["date"])
        validator = jsonschema.Draft202012Validator(schema, format_checker=formats)
        for value in (random_value(rng) for _ in range(25)):
            if takes(compiler, grammar, value) and not rewritten.unenforced:
                assert validator.is_valid(value), (schema, value)
                checked += 1
    assert checked > 20


def test_data_is_no_schema(compiler: GrammarCompiler) -> None:
    data = {"uniqueItems": True, "pattern": "(?=x)", "$ref": "#/nowhere", "minLength": 99999}
    schema = obj(a={"const": data}, b={"enum": [data]}, c={"default": data, "examples": [data]})
    assert not rewrite_schema(schema).unenforced
    grammar = compiled(compiler, schema)
    assert takes(compiler, grammar, {"a": data, "b": data})
    assert not takes(compiler, grammar, {"a": {}})


def test_properties_may_have_names_of_keywords(compiler: GrammarCompiler) -> None:
    names = ["uniqueItems", "not", "if", "then", "$ref", "$id", "pattern", "oneOf", "const", "type"]
    schema = obj(**dict.fromkeys(names, INT)) | {"required": names}
    assert not rewrite_schema(schema).unenforced
    grammar = compiled(compiler, schema)
    assert takes(compiler, grammar, dict.fromkeys(names, 1))
    assert not takes(compiler, grammar, dict.fromkeys(names, "x"))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (obj(a=INT), [{}, {"a": 1}], [{"b": 1}]),
        (obj(a=obj(b=INT)), [{"a": {"b": 1}}], [{"a": {"c": 1}}]),
        ({"allOf": [obj(a=INT), obj(b=INT)]}, [{"a": 1, "b": 1}], [{"c": 1}]),
        ({"anyOf": [obj(a=INT), obj(b=INT)]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {"c": 1}]),
        (obj(a=INT) | {"allOf": [{"$ref": "#/$defs/b"}], "$defs": {"b": obj(b=INT)}},
         [{"a": 1, "b": 1}], [{"c": 1}]),
        (obj(a={"$ref": "#/$defs/b"}) | {"allOf": [{"$ref": "#/$defs/b"}],
                                         "$defs": {"b": obj(b=INT)}},
         [{"a": {"b": 1}, "b": 1}], [{"a": {"c": 1}}, {"c": 1}]),
        (obj(a=INT) | {"required": ["z"]}, [{"z": 1}, {"a": 1, "z": 1}], [{"z": 1, "y": 1}]),
        ({"type": "object"}, [{}, {"a": 1}], [1]),
        (obj(a=INT) | {"additionalProperties": True}, [{"b": 1}], [{"a": "x"}]),
        ({"type": "object", "additionalProperties": INT}, [{"b": 1}], [{"b": "x"}]),
    ],
)  # fmt: skip
def test_objects_can_be_closed(
    compiler: GrammarCompiler, schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    grammar = compiled(compiler, schema, closed=True)
    for value in good:
        assert takes(compiler, grammar, value), value
    for value in bad:
        assert not takes(compiler, grammar, value), value


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (nested(MAX_DEPTH + 1), "more than 100 deep"),
        ({"enum": [0] * MAX_VALUES}, "more than 50000 values"),
        ({"$ref": "#/$defs/none"}, "refers at # to #/\\$defs/none"),
        (obj(a={"$ref": "#none"}), "refers at #/properties/a to #none"),
        (obj(a=3), "no schema at #/properties/a"),
        ({"properties": []}, "no object of schemas at #/properties"),
        ({"anyOf": {}}, "no list of schemas at #/anyOf"),
        ({"minLength": "3"}, "no whole number at #/minLength"),
        ({"maximum": "3"}, "no number at #/maximum"),
        ({"pattern": 3}, "no string at #/pattern"),
        ({"$id": "a" * 2000}, "2000 characters"),
        ({"$id": "http://[", "$ref": "x"}, "no URI"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        rewrite_schema(schema)


def test_references_that_nothing_uses_are_not_followed(compiler: GrammarCompiler) -> None:
    schema = {"$defs": {"a": {"$ref": "#/nowhere"}}, **INT}
    assert takes(compiler, compiled(compiler, schema), 1)


def test_work_is_bounded_by_the_size_of_a_schema() -> None:
    """Each part is rewritten once, however many references lead to it, and a comparison of many
    alternatives ends."""
    chain: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(200)
    }
    schema: dict[str, Any] = {"$ref": "#/$defs/d0", "$defs": chain | {"d200": INT}}
    found = rewrite_schema(schema)
    assert len(json.dumps(found.whole())) < 3 * len(json.dumps(schema))
    options: list[Any] = [obj(k={"const": n}) | {"required": ["k"]} for n in range(1000)]
    assert [each.keyword for each in rewrite_schema({"oneOf": options}).unenforced] == ["oneOf"]
    few: dict[str, Any] = {"oneOf": options[:50]}
    assert not rewrite_schema(few).unenforced
