"""`tool_choice`, and tools beside a `response_format`, with the real `openai` client."""

import json
from collections.abc import Iterator
from typing import Any

import fake_backend
import openai
import pytest
from api.test_openai_client import connected
from fake_backend import FakeBackend, Serve
from kit.narrowing import of_type, present
from openai import AsyncStream
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from baton.api.text_service import TextService
from baton.core.grammar import Grammar
from baton.text.chat_template import ChatTemplate
from baton.text.errors import GrammarError
from baton.text.forced_calls import ForcedCallParser
from baton.text.grammar import GrammarCompiler
from baton.text.tokenizer import Tokenizer
from baton.text.tool_calls import CallMore, ToolCall

HELLO: Any = [{"role": "user", "content": "hello"}]
NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}},
    "required": ["v"],
    "additionalProperties": False,
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


ADD = tool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
WALK = tool("walk", {"$ref": "#/$defs/node", "$defs": {"node": NODE}})
STOP = tool("stop")
TOOLS: Any = [ADD, WALK, STOP]
TEMPLATE = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[-1].content }}"


@pytest.fixture
def text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextService]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 500)
    service = TextService(tokenizer, ChatTemplate(TEMPLATE + "{# <tool_call> #}"))
    yield service
    service.close()


def accepts(tokenizer: Tokenizer, grammar: Grammar, text: str) -> bool:
    """Return True if `text` is a whole answer by the grammar."""
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    ids = tokenizer.encode(text, add_special_tokens=False)
    try:
        state = compiler.compile(grammar).start(ids)
        if not state.ended:
            state.push(min(tokenizer.stop_ids))
    except GrammarError:
        return False
    return True


def calls_of(reply: ChatCompletion) -> list[tuple[str, str]]:
    """Return the name and the arguments of each call of the first answer."""
    functions = [
        of_type(ChatCompletionMessageFunctionToolCall, call).function
        for call in reply.choices[0].message.tool_calls or ()
    ]
    return [(function.name, function.arguments) for function in functions]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("per_event", [1, 7, 500])
async def test_required_calls_are_forced_and_read(
    backend: FakeBackend, serve: Serve, stream: bool, per_event: int
) -> None:
    backend.says = (
        '[{"name":"add","arguments":{"a":7}},{"name":"walk","arguments":{"next":{"v":2},"v":1}}]'
    )
    backend.per_event = per_event
    async with connected(serve) as client:
        made = await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, tool_choice="required", stream=stream
        )
        if isinstance(made, AsyncStream):
            chunks = [chunk.choices[0] async for chunk in made]
            parts = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
            assert [part.index for part in parts if part.id is not None] == [0, 1]
            calls = [("", ""), ("", "")]
            for part in parts:
                (name, arguments), more = calls[part.index], present(part.function)
                calls[part.index] = (name + (more.name or ""), arguments + (more.arguments or ""))
            assert (len(parts) > 20) == (per_event == 1), "arguments come as they are written"
            reason = chunks[-1].finish_reason
        else:
            calls = calls_of(made)
            reason = made.choices[0].finish_reason
            assert made.choices[0].message.content is None
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("add", {"a": 7}),
        ("walk", {"v": 1, "next": {"v": 2}}),
    ]
    assert reason == "tool_calls"
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    prompt = backend.tokenizer.decode(backend.seen[0].prompt_ids)
    assert prompt.startswith("[add][walk][stop]")
    for answer, good in (
        (backend.says, True),
        ('[{"name":"stop","arguments":{}}]', True),
        ("[]", False),
        ('[{"name":"stop","arguments":{"a":1}}]', False),
        ('[{"name":"other","arguments":{}}]', False),
        ('[{"name":"add","arguments":{"a":"x"}}]', False),
        ('[{"name":"walk","arguments":{"next":{}}}]', False),
        ("hello", False),
    ):
        assert accepts(backend.tokenizer, grammar, answer) is good, answer


async def test_a_named_tool_is_the_only_call(backend: FakeBackend, serve: Serve) -> None:
    backend.says = '[{"name":"add","arguments":{"a":7}}]'
    named: Any = {"type": "function", "function": {"name": "add"}}
    async with connected(serve) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, tool_choice=named
        )
    assert [name for name, _ in calls_of(reply)] == ["add"]
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    assert accepts(backend.tokenizer, grammar, backend.says)
    assert not accepts(backend.tokenizer, grammar, '[{"name":"stop","arguments":{}}]')
    two = '[{"name":"add","arguments":{"a":7}},{"name":"add","arguments":{"a":8}}]'
    assert not accepts(backend.tokenizer, grammar, two)


async def test_calls_that_may_not_be_parallel_are_one(backend: FakeBackend, serve: Serve) -> None:
    backend.says = '[{"name":"stop","arguments":{}}]'
    async with connected(serve) as client:
        await client.chat.completions.create(
            model="toy",
            messages=HELLO,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
        )
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    assert accepts(backend.tokenizer, grammar, backend.says)
    two = '[{"name":"stop","arguments":{}},{"name":"stop","arguments":{}}]'
    assert not accepts(backend.tokenizer, grammar, two)


async def test_allowed_tools_are_the_ones_that_are_offered(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = '[{"name":"stop","arguments":{}}]'
    allowed: Any = {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "stop"}}],
        },
    }
    async with connected(serve) as client:
        await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, tool_choice=allowed
        )
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    assert not accepts(backend.tokenizer, grammar, '[{"name":"add","arguments":{"a":7}}]')
    assert backend.tokenizer.decode(backend.seen[0].prompt_ids).startswith("[stop]")


FORM: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "x",
        "schema": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
async def test_beside_a_response_format_an_answer_is_calls_or_follows_the_format(
    backend: FakeBackend, serve: Serve, stream: bool
) -> None:
    call = '<tool_call>\n{"name":"add","arguments":{"a":7}}\n</tool_call>'
    async with connected(serve) as client:
        for says, calls, content in ((call, ["add"], ""), ('{"ok":true}', [], '{"ok":true}')):
            backend.says = says
            made = await client.chat.completions.create(
                model="toy", messages=HELLO, tools=TOOLS, response_format=FORM, stream=stream
            )
            if isinstance(made, AsyncStream):
                deltas = [chunk.choices[0].delta async for chunk in made]
                parts = [each for delta in deltas for each in delta.tool_calls or []]
                found = [present(each.function).name for each in parts if each.id]
                text = "".join(delta.content or "" for delta in deltas)
            else:
                found = [name for name, _ in calls_of(made)]
                text = made.choices[0].message.content or ""
            assert found == calls
            assert text == content
    grammar = backend.seen[0].sampling.grammar
    assert grammar is not None
    for answer, good in (
        (call, True),
        (f"{call}\n{call}", True),
        ('{"ok":true}', True),
        ('{"ok":1}', False),
        ("hello", False),
        ('<tool_call>\n{"name":"add","arguments":{"a":"x"}}\n</tool_call>', False),
    ):
        assert accepts(backend.tokenizer, grammar, answer) is good, answer


async def test_an_answer_that_was_cut_gives_what_there_is_of_its_calls(
    backend: FakeBackend, serve: Serve
) -> None:
    backend.says = '[{"name":"stop","arguments":{}},{"name":"add","arguments":{"a":123456'
    length = len(backend.tokenizer.encode(backend.says))
    async with connected(serve) as client:
        reply = await client.chat.completions.create(
            model="toy", messages=HELLO, tools=TOOLS, tool_choice="required", max_tokens=length
        )
    (choice,) = reply.choices
    assert choice.finish_reason == "length"
    assert calls_of(reply) == [("stop", "{}"), ("add", '{"a":123456')]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("sometimes", "expected 'auto'"),
        ({"type": "function", "function": {"name": "other"}}, "expected one of the tools: add"),
        ({"type": "function"}, "expected one of the tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "expected"),
        ({"type": "custom"}, "expected"),
        (5, "tool_choice"),
    ],
)
async def test_a_choice_that_is_none_is_refused(serve: Serve, choice: Any, words: str) -> None:
    async with connected(serve) as client:
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            await client.chat.completions.create(
                model="toy", messages=HELLO, tools=TOOLS, tool_choice=choice
            )
    assert caught.value.param == "tool_choice"


async def test_a_forced_call_needs_tools_and_no_other_grammar(serve: Serve) -> None:
    async with connected(serve) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="no tools"):
            await create(model="toy", messages=HELLO, tool_choice="required")
        for more in ({"regex": "a+"}, {"ebnf": 'root ::= "a"'}):
            for choice in ("required", "auto"):
                with pytest.raises(openai.BadRequestError, match="tools and"):
                    await create(
                        model="toy", messages=HELLO, tools=TOOLS, tool_choice=choice,
                        extra_body=more,
                    )  # fmt: skip


async def test_parameters_that_are_no_schema_are_refused(serve: Serve) -> None:
    bad: Any = [tool("add", {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})]
    async with connected(serve) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="toy", messages=HELLO, tools=bad, tool_choice="required"
            )
    assert caught.value.param == "tools"


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_forced_calls_are_read_from_pieces_of_any_size(size: int) -> None:
    arguments = [{"s": '}]{["\\"'}, {"deep": [[{"x": {}}]]}, {}]
    text = json.dumps([{"name": f"n{i}", "arguments": a} for i, a in enumerate(arguments)])
    parser = ForcedCallParser()
    names, given = [], list[str]()
    for at in range(0, len(text), size):
        for part in parser.push(text[at : at + size]):
            assert isinstance(part, ToolCall | CallMore)
            if isinstance(part, ToolCall):
                names.append(part.name)
                given.append("")
            given[-1] += part.arguments
    assert not parser.finish()
    assert names == ["n0", "n1", "n2"]
    assert [json.loads(each) for each in given] == arguments


def test_forced_calls_may_be_deeper_than_python_parses() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    found = ForcedCallParser().push('[{"name":"x","arguments":' + deep + "}]")
    assert found == [ToolCall("x", deep, whole=True)]


def test_half_a_surrogate_pair_stays_escaped() -> None:
    parser = ForcedCallParser()
    (call,) = parser.push('[{"name":"x","arguments":{"a":"\\ud800"}}]')
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {"a": "\ud800"}
    call.arguments.encode()
