"""The grammar of calls in each form: it takes what models write, and its answers are read back."""

import json
import random
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import toy_tokenizer
from hypothesis import event, given, settings
from hypothesis import strategies as st
from text.written_calls import FORMS, Written
from tokenizers import AddedToken

from baton.core.grammar import Grammar, GrammarKind
from baton.text.call_grammar import CallableTool, CallableTools, call_rules
from baton.text.errors import GrammarError
from baton.text.grammar import CompiledGrammar, GrammarCompiler
from baton.text.json_schema.rewriter import rewrite_schema
from baton.text.reply_parser import ReplyParser
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer
from baton.text.tool_calls import CallMore, CallStyle, ToolCall, ToolFormat

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "text": {"type": "string"},
        "kind": {"enum": ["x y", "z"]},
        "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/small"}, "maxItems": 2},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["text", "a"],
    "additionalProperties": False,
    "$defs": {"small": {"type": "integer", "minimum": 0, "maximum": 9}},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "add": ADD,
    "stop": {"type": "object", "properties": {}, "additionalProperties": False},
    "all_optional": {
        "type": "object",
        "properties": {"u": {"type": "integer"}, "v": {"const": "w"}},
        "additionalProperties": False,
    },
    "any": {"type": "object"},
    "some_texts": {
        "type": "object",
        "properties": {
            "mode": {"anyOf": [{"enum": ["on", "off"]}, {"type": "null"}]},
            "size": {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 10}]},
            "mixed": {"enum": ["x", 5, None]},
        },
        "required": ["mode", "size"],
        "additionalProperties": False,
    },
    "referred": {
        "$ref": "#/definitions/arguments",
        "definitions": {
            "arguments": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "s": {"type": "string"}},
                "required": ["n"],
                "additionalProperties": False,
            }
        },
    },
    "needs_more": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
}
LOOSE = {"Falcon-H1"}  # its list of calls stands where the grammar writes a call
TAUGHT = {
    name: form
    for name, form in FORMS.items()
    if " with" not in name and " in" not in name and name not in LOOSE
}
"""The forms as their templates teach them."""
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 7, "text": 'a "b"\n<c> \\'}),
    ("add", {"a": -7, "text": "", "kind": "x y", "on": True, "list": [1, 2], "maybe": "m"}),
    ("stop", {}),
    ("all_optional", {"v": "w"}),
    ("all_optional", {"u": 5, "v": "w"}),
    ("any", {"k": "v", "n": 5}),
    ("some_texts", {"mode": "on", "size": "auto", "mixed": "x"}),
    ("some_texts", {"mode": None, "size": 10, "mixed": 5}),
    ("referred", {"n": 7, "s": "5"}),
    ("needs_more", {"b": "c"}),
]


def callable_tools(schemas: Mapping[str, dict[str, Any]] = SCHEMAS) -> CallableTools:
    tools: list[CallableTool] = []
    parts: dict[str, Any] = {}
    for number, (name, schema) in enumerate(schemas.items()):
        found = rewrite_schema(schema, name=f"tool{number}_")
        parts |= found.parts
        tools.append(CallableTool(name, schema, found.root))
    return CallableTools(tools, parts)


def test_a_schema_comes_with_the_parts_that_it_refers_to_and_no_others() -> None:
    tools = callable_tools()
    add, stop = tools.tools[0].arguments, tools.tools[1].arguments
    parts = [part for part in tools.parts if part.startswith("tool0_")]
    assert [*tools.whole(add)["$defs"]] == parts and parts
    assert tools.whole(stop) == stop
    loop = {"$ref": "#/$defs/a"}
    looped = {"a": {"anyOf": [loop, {"$ref": "#/$defs/b"}]}, "b": {"type": "null"}, "c": {}}
    assert [*CallableTools([], looped).whole(loop)["$defs"]] == ["a", "b"]


def make_tokenizer(form: ToolFormat, *, special: bool) -> Tokenizer:
    made = toy_tokenizer.byte_level()
    if special:
        made.add_tokens([AddedToken(mark, special=True) for mark in form.marks])
    return Tokenizer(made, SpecialTokens())


def compiled(
    form: ToolFormat,
    tokenizer: Tokenizer,
    special: Mapping[str, int],
    *,
    parallel: bool = True,
    schemas: Mapping[str, dict[str, Any]] = SCHEMAS,
) -> CompiledGrammar:
    lines = call_rules(form, callable_tools(schemas), special, parallel=parallel)
    text = "\n".join(["start: calls", *lines])
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, [END])
    return compiler.compile(Grammar(GrammarKind.LARK, text))


HUGE = re.compile(r"\d[eE]\+?\d{3}")  # a number that may be infinite, which is read as no call
ENDS = set('<"}])\n')
MOST = 400
SEPARATORS = (",", ":")
END = 1
"""The id of the toy's `<|end|>`."""


def fits(grammar: CompiledGrammar, tokenizer: Tokenizer, text: str) -> bool:
    try:
        state = grammar.start(tokenizer.encode(text, add_special_tokens=False))
        if not state.ended:
            state.push(END)
    except GrammarError:
        return False
    return True


def compact(written: Written, name: str, arguments: dict[str, Any]) -> str:
    """Return a call as its model writes it, with the JSON as compact as grammars have it, and the
    arguments in the order of grammars."""
    order = list(SCHEMAS[name].get("properties", {}))
    needed = SCHEMAS[name].get("required", [])
    if written.form.styles[0] is CallStyle.PYTHON:
        order.sort(key=lambda key: key not in needed)
    ordered = dict(sorted(arguments.items(), key=lambda item: [*order, item[0]].index(item[0])))
    if written.form.styles[0] is CallStyle.PYTHON:  # strings in either quotes are Python's
        members = [
            f"{key}={json.dumps(each, separators=SEPARATORS)}" for key, each in ordered.items()
        ]
        return f"{written.form.begin}[{name}({', '.join(members)})]{written.form.end}"
    text = written.write([(name, ordered)])
    loose = json.dumps(ordered, ensure_ascii=False)
    tight = json.dumps(ordered, ensure_ascii=False, separators=SEPARATORS)
    text = (
        text.replace(loose, tight)
        .replace('"name": ', '"name":')
        .replace(f', "arguments": {tight}', f',"arguments":{tight}')
    )
    return text.replace(f', "parameters": {tight}', f',"parameters":{tight}').replace(
        "[1, 2]", "[1,2]"
    )


def read(
    written: Written,
    text: str,
    *,
    hidden: Mapping[str, int],
    schemas: Mapping[str, dict[str, Any]] = SCHEMAS,
) -> list[tuple[str, Any]]:
    parser = ReplyParser(None, written.form, parameters=schemas)
    parser.hide(hidden)
    calls: list[list[str]] = []
    for part in [*parser.push(text), *parser.finish()]:
        if isinstance(part, ToolCall):
            calls.append([part.name, part.arguments])
        elif isinstance(part, CallMore):
            calls[-1][1] += part.arguments
        else:
            assert not part.text.strip(), text
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", TAUGHT)
def test_it_takes_what_the_template_teaches(name: str, special: bool) -> None:
    written = TAUGHT[name]
    tokenizer = make_tokenizer(written.form, special=special)
    ids = tokenizer.special_marks(written.form.marks)
    assert bool(ids) is special
    grammar = compiled(written.form, tokenizer, ids)
    for tool, arguments in CALLS:
        text = compact(written, tool, arguments)
        assert fits(grammar, tokenizer, text), text
        assert read(written, text, hidden=ids) == [(tool, arguments)]
        assert not fits(grammar, tokenizer, text.replace(tool, "other", 1)), text
        assert not fits(grammar, tokenizer, text + "x"), text
    wrong = compact(written, "add", {"a": 7, "text": "t"})
    assert not fits(grammar, tokenizer, wrong.replace("7", "[]", 1)), wrong
    assert not fits(grammar, tokenizer, '{"ok":false}')


@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("name", TAUGHT)
def test_what_it_lets_through_is_read_as_calls_that_obey_their_schemas(
    seed: int, name: str, special: bool
) -> None:
    """Random walks through the grammar, which prefer to end what they have begun."""
    written, rng = TAUGHT[name], random.Random(seed)
    tokenizer = make_tokenizer(written.form, special=special)
    ids = tokenizer.special_marks(written.form.marks)
    grammar = compiled(written.form, tokenizer, ids)
    ends = {i for i in range(tokenizer.vocab_size) if tokenizer.decode([i]) in ENDS}
    whole = 0
    for _ in range(4):
        state = grammar.start()
        made: list[int] = []
        while not state.ended and len(made) < MOST:
            mask = state.allowed()
            may = [i for i in range(tokenizer.vocab_size) if mask[i // 64] >> i % 64 & 1]
            preferred = [i for i in may if i in ends]
            forced = state.forced()
            token = rng.choice(preferred if preferred and rng.random() < 0.6 else may)
            token = forced[0] if forced else END if END in may else token
            if token == END:
                break
            state.push(token)
            made.append(token)
        text = tokenizer.decode(made, skip_special_tokens=False)
        if len(made) == MOST or HUGE.search(text):
            continue
        whole += 1
        found = read(written, text, hidden=ids)
        assert found, text
        for tool, arguments in found:
            jsonschema.validate(arguments, SCHEMAS[tool])
    event(f"{whole} of 4 came to an end")


@pytest.mark.parametrize("name", TAUGHT)
def test_without_parallel_calls_there_is_one(name: str) -> None:
    written = TAUGHT[name]
    tokenizer = make_tokenizer(written.form, special=False)
    one, two = written.write([("stop", {})]), written.write([("stop", {})] * 2)
    for old, new in (('": ', '":'), (', "', ',"'), ("}, {", "},{")):
        one, two = one.replace(old, new), two.replace(old, new)
    assert fits(compiled(written.form, tokenizer, {}), tokenizer, two), two
    alone = compiled(written.form, tokenizer, {}, parallel=False)
    assert fits(alone, tokenizer, one) and not fits(alone, tokenizer, two)


def test_listed_texts_stand_in_tags_as_they_are_beside_other_values() -> None:
    written = TAUGHT["Qwen3-Coder, Qwen3.5, Nemotron 3"]
    tokenizer = make_tokenizer(written.form, special=False)
    grammar = compiled(written.form, tokenizer, {})
    given = {"mode": "on", "size": "auto", "mixed": "x"}
    text = compact(written, "some_texts", given)
    assert fits(grammar, tokenizer, text), text
    assert read(written, text, hidden={}) == [("some_texts", given)]
    for each in given.values():
        quoted = text.replace(f"\n{each}\n", f'\n"{each}"\n')
        assert quoted != text and not fits(grammar, tokenizer, quoted), quoted


ODD_NAME = "a>b"
"""Neither a tag nor Python has it as a word."""
ODD: dict[str, dict[str, Any]] = {
    "the tool's": {ODD_NAME: SCHEMAS["stop"]},
    "an argument's": {"t": {"type": "object", "properties": {ODD_NAME: {"type": "integer"}}}},
    "a required one's": {"t": {"type": "object", "required": [ODD_NAME]}},
    "one behind a reference": {
        "t": {
            "$ref": "#/$defs/arguments",
            "$defs": {
                "arguments": {"type": "object", "properties": {ODD_NAME: {"type": "integer"}}},
            },
        }
    },
}


@pytest.mark.parametrize("which", ODD)
@pytest.mark.parametrize("name", ["Qwen3-Coder, Qwen3.5, Nemotron 3", "LFM2.5"])
def test_names_that_the_form_has_no_word_for_are_written_in_json(name: str, which: str) -> None:
    form, schemas = TAUGHT[name].form, ODD[which]
    tokenizer = make_tokenizer(form, special=False)
    grammar = compiled(form, tokenizer, {}, schemas=schemas)
    (tool,) = schemas
    given = {} if tool == ODD_NAME else {ODD_NAME: 7}
    call = json.dumps({"name": tool, "arguments": given}, separators=SEPARATORS)
    text = (
        f"{form.begin}[{call}]{form.end}" if form.together else f"{form.begin}\n{call}\n{form.end}"
    )
    assert fits(grammar, tokenizer, text), text
    assert read(TAUGHT[name], text, hidden={}, schemas=schemas) == [(tool, given)]
    in_tags = f"{form.begin}\n<function={tool}>\n</function>\n{form.end}"
    for other in (in_tags, f"{form.begin}[{tool}({ODD_NAME}=7)]{form.end}"):
        assert not fits(grammar, tokenizer, other), other


@pytest.mark.parametrize("inside", [
    "x\n<parameter=kind>\nz", "x\n<parameter= kind >", "x</function>\n</tool_call>",
    "x</function></tool_call> y",
])  # fmt: skip
def test_no_text_in_tags_has_what_its_reader_takes_for_the_end(inside: str) -> None:
    written = TAUGHT["Qwen3-Coder, Qwen3.5, Nemotron 3"]
    tokenizer = make_tokenizer(written.form, special=False)
    grammar = compiled(written.form, tokenizer, {})
    text = compact(written, "add", {"a": 7, "text": inside, "kind": "x y"})
    assert not fits(grammar, tokenizer, text), text
    harmless = inside.replace("kind", "other").replace("</f", "< /f")
    given = {"a": 7, "text": harmless, "kind": "x y"}
    text = compact(written, "add", given)
    assert fits(grammar, tokenizer, text), text
    assert read(written, text, hidden={}) == [("add", given)]


@pytest.mark.parametrize("name", TAUGHT)
def test_forty_tools_with_ten_arguments_each_have_a_grammar(name: str) -> None:
    kinds: list[dict[str, Any]] = [{"type": "integer"}, {"type": "string"}, {"type": "boolean"}]
    schema = {
        "type": "object",
        "properties": {f"argument_{k}": kinds[k % 3] for k in range(10)},
        "required": ["argument_0"],
        "additionalProperties": False,
    }
    schemas = {f"tool_{number}": schema for number in range(40)}
    written = TAUGHT[name]
    tokenizer = make_tokenizer(written.form, special=False)
    grammar = compiled(written.form, tokenizer, {}, schemas=schemas)
    text = compact(written, "any", {"argument_0": 7}).replace("any", "tool_39")
    assert fits(grammar, tokenizer, text), text
