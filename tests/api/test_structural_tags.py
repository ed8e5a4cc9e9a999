"""Free text with tags that hold a schema, as vLLM's and SGLang's clients describe it."""

import json
from typing import Any

import pytest
from fake_backend import Connect, FakeBackend
from schema_cases import INT, NAMED, TEXT, obj

from baton.api.fields.ignored import IGNORED_HEADER
from baton.core.grammar import Grammar
from baton.text.errors import GrammarError
from baton.text.grammar import GrammarCompiler
from baton.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "hello"}
ADD = obj(a=INT) | {"required": ["a"], "additionalProperties": False}
STRUCTURES: dict[str, Any] = {
    "structures": [
        {"begin": "<function=add>", "schema": ADD, "end": "</function>"},
        {"begin": "<function=say>", "schema": TEXT | {"maxLength": 3}, "end": "</function>"},
        {"begin": "[DONE", "schema": {"type": "null"}, "end": "]"},
    ],
    "triggers": ["<function=", "[DONE"],
}
TAGGED: dict[str, Any] = {
    "type": "triggered_tags",
    "triggers": STRUCTURES["triggers"],
    "tags": [
        {
            "type": "tag",
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each["schema"]},
            "end": each["end"],
        }
        for each in STRUCTURES["structures"]
    ],
}
CALL = '<function=add>{"a":1}</function>'
GOOD = [
    "hello", "a < b, <func and [DON", CALL,
    f'First {CALL} then\n<function=say>"日本"</function>.',
    "[DONEnull]",
]  # fmt: skip
BAD = [
    "<function=", "so <function=mul>{}</function>", '<function=add>{"a":"x"}</function>',
    '<function=say>"long"</function>', '<function=add>{"a":1} and', "[DONE]",
]  # fmt: skip


def takes(tokenizer: Tokenizer, grammar: Grammar | None, text: str) -> bool:
    """Return True if a text is a whole answer by the grammar."""
    assert grammar is not None
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    try:
        state = compiler.compile(grammar).start(tokenizer.encode(text, add_special_tokens=False))
        if not state.ended:
            state.push(min(tokenizer.stop_ids))
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize("given", [STRUCTURES, {"format": TAGGED}])
async def test_text_is_free_but_for_its_tags(
    connect: Connect, backend: FakeBackend, given: dict[str, Any]
) -> None:
    tag = {"type": "structural_tag"} | given
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [USER], "response_format": tag}),
        ("/v1/completions", {"prompt": "x", "structural_tag": json.dumps(tag)}),
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"structural_tag": tag}}),
        ("/generate", {"text": "x", "sampling_params": {"structural_tag": json.dumps(tag)}}),
    ]
    grammars = set()
    async with connect() as client:
        for path, body in bodies:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            grammars.add(backend.seen[-1].sampling.grammar)
    (grammar,) = grammars
    for text in GOOD:
        assert takes(backend.tokenizer, grammar, text), text
    for text in BAD:
        assert not takes(backend.tokenizer, grammar, text), text


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (TAGGED | {"at_least_one": True}, [CALL, f"So: {CALL} done"], ["hello", ""]),
        (TAGGED | {"stop_after_first": True}, [CALL, "hello", f"a {CALL}"], [f"{CALL} b"]),
        (TAGGED | {"stop_after_first": True, "at_least_one": True}, [CALL], ["hello", CALL * 2]),
        (TAGGED["tags"][0], [CALL], ["hello", f"{CALL} more"]),
        ({"type": "json_schema", "json_schema": ADD}, ['{"a":1}'], ['{"a":"x"}', CALL]),
        ({"type": "tag", "begin": "<", "content": {"type": "const_string", "value": "x"},
          "end": ""}, ["<x"], ["<", "<y", "x"]),
    ],
)  # fmt: skip
async def test_forms_of_xgrammar(
    connect: Connect, backend: FakeBackend, form: Any, good: list[str], bad: list[str]
) -> None:
    body = {"prompt": "x", "response_format": {"type": "structural_tag", "format": form}}
    async with connect() as client:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
    grammar = backend.seen[-1].sampling.grammar
    for text in good:
        assert takes(backend.tokenizer, grammar, text), text
    for text in bad:
        assert not takes(backend.tokenizer, grammar, text), text


async def test_what_a_tags_schema_leaves_out_is_named(connect: Connect) -> None:
    tags = {"structures": [{"begin": "<f>", "schema": NAMED["if"], "end": ""}], "triggers": ["<f"]}
    body = {"prompt": "x", "response_format": {"type": "structural_tag"} | tags}
    async with connect() as client:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.headers[IGNORED_HEADER] == "schema.if"


ONE = STRUCTURES["structures"][0]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "expected structures"),
        ({"structures": [], "triggers": ["<"]}, "expected 1 to 1000 tags"),
        ({"structures": [ONE], "triggers": []}, "expected triggers"),
        ({"structures": [ONE], "triggers": [""]}, "expected triggers"),
        ({"structures": [ONE], "triggers": ["x"]}, "no trigger is the beginning of '<function=add"),
        ({"structures": [ONE | {"end": 3}], "triggers": ["<"]}, "expected a text as end"),
        ({"structures": [ONE | {"schema": 3}], "triggers": ["<"]}, "expected a schema"),
        ({"structures": [ONE | {"schema": {"items": 3}}], "triggers": ["<"]}, "at #/items"),
        ({"format": {"type": "or"}}, "format.type is 'or'; expected triggered_tags"),
        ({"format": {"type": "tag", "begin": "<", "end": ">"}}, "expected an object as"),
    ],
)  # fmt: skip
async def test_what_describes_no_tags_is_refused(
    connect: Connect, given: dict[str, Any], why: str
) -> None:
    body = {"prompt": "x", "response_format": {"type": "structural_tag"} | given}
    async with connect() as client:
        reply = await client.post("/v1/completions", json=body)
        assert reply.status_code == 400, reply.text
        assert why in reply.json()["error"]["message"]
        assert reply.json()["error"]["param"] == "response_format"
        reply = await client.post("/v1/completions", json={"prompt": "x", "structural_tag": "{"})
        assert reply.status_code == 400 and "no JSON" in reply.text


@pytest.mark.parametrize("empty", ["", {}])
async def test_an_empty_tag_asks_for_nothing(
    connect: Connect, backend: FakeBackend, empty: Any
) -> None:
    bodies = [
        ("/v1/completions", {"prompt": "x", "structural_tag": empty}),
        ("/generate", {"text": "x", "sampling_params": {"structural_tag": empty}}),
    ]
    async with connect() as client:
        for path, body in bodies:
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
            assert backend.seen[-1].sampling.grammar is None
