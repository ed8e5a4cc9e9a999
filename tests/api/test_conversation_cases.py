"""Bodies of clients that templates could not read, or read wrongly, one at a time."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import fake_backend
import httpx
import pytest
from prompt_model import CHAT, MESSAGES, RESPONSES, Json, Model, made_model, template_named

USER: Json = {"role": "user", "content": "x"}
FUNCTION: Json = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"


class MakeModel(Protocol):
    def __call__(self, template: Any) -> Model: ...


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeModel]:
    monkeypatch.setattr(fake_backend, "CONTEXT", 10_000)
    with ExitStack() as stack:
        folders = iter(range(100))

        def made(template: Any) -> Model:
            folder = tmp_path / str(next(folders))
            folder.mkdir()
            return stack.enter_context(made_model(folder, template))

        yield made


def call(arguments: object, **more: Any) -> Json:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"} | {
        "function": function}]} | more  # fmt: skip


RESULT: Json = {"role": "tool", "tool_call_id": "c", "content": "r"}


@pytest.mark.parametrize("name", ["text_or_object", "strict_objects"])
async def test_null_and_absent_contents_are_empty(name: str, make: MakeModel) -> None:
    model = make(template_named(name))
    told = [USER, call({}, content=""), RESULT | {"content": ""}]
    ids = model.expected(told, TOOLS)
    with model.prompts() as prompts:
        contents: tuple[Json, ...] = ({"content": None}, {"content": ""}, {"content": []}, {})
        for content in contents:
            result = {"role": "tool", "tool_call_id": "c"} | content
            body = {"messages": [USER, call("{}") | content, result], "tools": TOOLS}
            assert await prompts.ids(CHAT, body) == ids, content


async def test_an_answer_of_our_own_can_be_sent_back(make: MakeModel) -> None:
    model = make(template_named("text_or_object"))
    with model.prompts() as prompts:
        says = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
        prompts.backend.says = says
        reply = await prompts.client.post(CHAT, json={"messages": [USER], "tools": TOOLS})
        answer = reply.json()["choices"][0]["message"]
        assert answer["content"] is None and answer["tool_calls"]
        body = {"messages": [USER, answer, RESULT], "tools": TOOLS}
        prompt = await prompts.text(CHAT, body)
    assert prompt.endswith(f"{says}<|end|><tool_response>r</tool_response><|assistant|>")


async def test_no_calls_at_all_leave_the_text_of_a_turn(make: MakeModel) -> None:
    model = make(template_named("calls_hide_text"))
    with model.prompts() as prompts:
        none: tuple[list[Json] | None, ...] = (None, [])
        for calls in none:
            turn = {"role": "assistant", "content": "said", "tool_calls": calls}
            prompt = await prompts.text(CHAT, {"messages": [USER, turn, USER]})
            assert prompt == "<|user|>x<|end|><|assistant|>said<|end|><|user|>x<|end|><|assistant|>"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}},
        {"function": {"parameters": {"type": "object"}, "name": "f"}, "type": "function", "x": 1},
        {"type": "function", "function": {"strict": None, "name": "f", "description": None}},
    ],
)
async def test_a_tool_keeps_the_order_of_its_keys(tool: Json, make: MakeModel) -> None:
    model = make(template_named("text_or_object"))
    body = {"messages": [USER], "tools": [tool]}
    ids = model.expected([USER], [tool])
    with model.prompts() as prompts:
        assert await prompts.ids(CHAT, body) == ids
        reply = await prompts.client.post("/tokenize", json=body)
    assert reply.json()["tokens"] == ids


async def test_tools_of_the_other_apis_come_in_the_order_of_openais(make: MakeModel) -> None:
    model = make(template_named("text_or_object"))
    schema: Json = {
        "type": "object",
        "properties": {"z": {}, "a": {}},
        "additionalProperties": False,
    }
    function = {"name": "f", "description": "d", "parameters": schema}
    ids = model.expected([USER], [{"type": "function", "function": function}])
    ours: Json = {"name": "f", "description": "d", "input_schema": schema}
    with model.prompts() as prompts:
        body: Json = {"messages": [USER], "max_tokens": 1}
        assert await prompts.ids(MESSAGES, body | {"tools": [ours]}) == ids
        body = {"input": "x", "tools": [{"type": "function", **function}]}
        assert await prompts.ids(RESPONSES, body) == ids


EMPTY: tuple[Any, ...] = ("", " ", "null", None, "[]", "{}", {}, [])
EMPTY_ARGUMENTS: list[Json] = [*({"arguments": value} for value in EMPTY), {}]


@pytest.mark.parametrize("given", EMPTY_ARGUMENTS, ids=str)
async def test_empty_arguments_are_an_empty_object(given: Json, make: MakeModel) -> None:
    model = make(template_named("strict_objects"))
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f"} | given}]}
    item = {"type": "function_call", "call_id": "c", "name": "f", **given}
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    with model.prompts() as prompts:
        chat = await prompts.text(CHAT, {"messages": [USER, turn, RESULT], "tools": TOOLS})
        items = {"input": [USER, item, output], "tools": TOOLS_OF_RESPONSES}
        assert await prompts.text(RESPONSES, items) == chat
    assert "<tool_call><function=f></function></tool_call>" in chat


TOOLS_OF_RESPONSES = [{"type": "function", **FUNCTION}]


@pytest.mark.parametrize(
    ("name", "cut", "shown"),
    [
        ("text_or_object", '{"a": "x', '{"a": "x}'),
        ("joined_arguments", '{"a": "x', '{"a": "x<'),
        ("strict_objects", '{"a": "x', "<parameter=a>x</parameter>"),
        ("strict_objects", '{"b": [1, {"a": "x\\"', '<parameter=b>[1, {"a": "x\\""}]</parameter>'),
        ("strict_objects", "[" * 9_000, "<parameter=arguments>[["),
        ("strict_objects", "no JSON", "<parameter=arguments>no JSON</parameter>"),
    ],
)
async def test_arguments_that_were_cut_off_are_shown(
    name: str, cut: str, shown: str, make: MakeModel
) -> None:
    model = make(template_named(name))
    with model.prompts() as prompts:
        messages = [USER, call(cut, content=None), RESULT]
        assert shown in await prompts.text(CHAT, {"messages": messages, "tools": TOOLS})


@pytest.mark.parametrize("name", ["joined_arguments", "null_beside_calls"])
async def test_calls_reach_templates_that_join_their_text(name: str, make: MakeModel) -> None:
    model = make(template_named(name))
    turn = call('{"a":1}')
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    output = {"type": "function_call_output", "call_id": "c", "output": "r"}
    anthropic = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    with model.prompts() as prompts:
        for content in ("", None):
            body: Json = {"messages": [USER, turn | {"content": content}, RESULT]}
            assert 'f\n{"a":1}</tool_call>' in await prompts.text(CHAT, body)
        body = {"messages": [USER, *anthropic], "max_tokens": 1}
        assert 'f\n{"a": 1}</tool_call>' in await prompts.text(MESSAGES, body)
        body = {"input": [USER, item, output]}
        assert 'f\n{"a":1}</tool_call>' in await prompts.text(RESPONSES, body)


LATER: list[tuple[str, Json]] = [
    (MESSAGES, {"max_tokens": 9, "messages": [
        {"role": "user", "content": "a"}, {"role": "system", "content": "be brief"},
        {"role": "user", "content": "b"}]}),
    (CHAT, {"messages": [
        {"role": "user", "content": "a"}, {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "b"}]}),
    (RESPONSES, {"input": [
        {"role": "user", "content": "a"}, {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "b"}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), LATER, ids=lambda each: str(each)[:20])
async def test_a_later_system_message_joins_the_user_where_the_template_wants_it_first(
    path: str, body: Json, make: MakeModel
) -> None:
    strict, lenient = make(template_named("strict_objects")), make(CHATML)
    turns = make(template_named("turns_alternate"))
    with strict.prompts() as prompts:
        prompt = await prompts.text(path, body)
        assert prompt == "<|user|>a\nbe brief<|end|><|user|>b<|end|><|assistant|>"
    with lenient.prompts() as prompts:
        prompt = await prompts.text(path, body)
        assert prompt == "<|user|>a<|end|><|system|>be brief<|end|><|user|>b<|end|><|assistant|>"
    with turns.prompts() as prompts:
        assert await prompts.text(path, body) == "<|user|>a\nbe brief\nb<|end|><|assistant|>"


async def test_a_system_message_before_the_user_joins_it_by_a_line(make: MakeModel) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    late: list[Json] = [{"role": "system", "content": text} for text in ("p", "q")]
    turn = {"role": "assistant", "content": "y"}
    messages = [USER, turn, *late, {"role": "user", "content": parts}]
    with make(template_named("strict_objects")).prompts() as prompts:
        prompt = await prompts.text(CHAT, {"messages": messages})
        assert prompt.endswith("<|user|>p\nq\nonetwo<|end|><|assistant|>")
        messages = [{"role": "user", "content": parts}, *late]
        prompt = await prompts.text(CHAT, {"messages": messages})
        assert prompt == "<|user|>onetwo\np\nq<|end|><|assistant|>"
        empty = [{"role": role, "content": ""} for role in ("user", "system")]
        body: Json = {"messages": [empty[0], late[0], empty[1], USER]}
        prompt = await prompts.text(CHAT, body)
        assert prompt == "<|user|>p<|end|><|user|>x<|end|><|assistant|>"


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}<|{{ m.role }}|>"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|end|>{% endfor %}"
)


async def test_messages_of_the_user_join_by_a_line(make: MakeModel) -> None:
    with make(ALTERNATING).prompts() as prompts:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        messages = [USER, {"role": "user", "content": parts}, USER]
        prompt = await prompts.text(CHAT, {"messages": messages})
    assert prompt == "<|user|>x\nonetwo\nx<|end|>"


async def test_a_later_system_message_leaves_the_prompt_before_it_as_it_was(
    make: MakeModel,
) -> None:
    model = make(template_named("strict_objects"))
    history: list[Json] = [
        {"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "y"},
    ]  # fmt: skip
    late = {"role": "system", "content": "late"}
    with model.prompts() as prompts:
        said = {"messages": [*history, USER], "add_generation_prompt": False}
        before = await prompts.ids(CHAT, said)
        for more in ([USER, late], [USER, late, {"role": "assistant", "content": "z"}, USER]):
            after = await prompts.ids(CHAT, {"messages": [*history, *more]})
            common = len(before) - 1  # without the mark of the end
            assert after[:common] == before[:common]
        alone = await prompts.text(CHAT, {"messages": [*history, late]})
        behind = await prompts.text(CHAT, {"messages": [USER, call("{}"), RESULT, late]})
    assert alone.endswith("<|user|>late<|end|><|assistant|>")
    assert behind.endswith("<|tool|>r<|end|><|user|>late<|end|><|assistant|>")


async def test_system_messages_at_the_beginning_become_one_where_they_must(
    make: MakeModel,
) -> None:
    first: list[Json] = [{"role": "system", "content": "s"}, {"role": "developer", "content": "t"}]
    with make(template_named("strict_objects")).prompts() as prompts:
        found = {
            await prompts.text(CHAT, {"messages": [*first, USER]}),
            await prompts.text(RESPONSES, {"input": [*first, USER]}),
            await prompts.text(RESPONSES, {"instructions": "s", "input": [first[1], USER]}),
        }
    assert found == {"<|system|>s\n\nt<|end|><|user|>x<|end|><|assistant|>"}
    with make(CHATML).prompts() as prompts:
        found = {await prompts.text(CHAT, {"messages": [*first, USER]})}
    assert found == {"<|system|>s<|end|><|system|>t<|end|><|user|>x<|end|><|assistant|>"}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
async def test_reasoning_of_any_name_reaches_the_template(name: str, make: MakeModel) -> None:
    model = make(template_named("text_or_object"))
    turn: Json = {"role": "assistant", "content": "a"}
    ids = model.expected([USER, turn | {"reasoning_content": "hm"}, USER], None)
    with model.prompts() as prompts:
        body = {"messages": [USER, turn | {name: "hm"}, USER]}
        assert await prompts.ids(CHAT, body) == ids
        part = {"type": "thinking", "thinking": "hm"}
        parts = [part, {"type": "text", "text": "a"}]
        body = {"messages": [USER, turn | {"content": parts}, USER]}
        assert await prompts.ids(CHAT, body) == ids


async def test_a_refusal_is_text(make: MakeModel) -> None:
    model = make(CHATML)
    ids = model.expected([USER, {"role": "assistant", "content": "no"}, USER], None)
    part = {"type": "refusal", "refusal": "no"}
    with model.prompts() as prompts:
        for content in ({"content": [part]}, {"content": None, "refusal": "no"}):
            body: Json = {"messages": [USER, {"role": "assistant"} | content, USER]}
            assert await prompts.ids(CHAT, body) == ids
        item = {"type": "message", "role": "assistant", "content": [part]}
        assert await prompts.ids(RESPONSES, {"input": [USER, item, USER]}) == ids


async def test_parts_are_joined_by_a_line_unless_the_template_reads_them(make: MakeModel) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": role, "content": parts} for role in ("system", "user", "assistant")]
    with make(CHATML).prompts() as prompts:
        prompt = await prompts.text(CHAT, {"messages": messages})
        body = {"system": parts, "messages": messages[1:2], "max_tokens": 1}
        begin = await prompts.text(MESSAGES, body)
    assert prompt == "".join(f"<|{m['role']}|>one\ntwo<|end|>" for m in messages) + "<|assistant|>"
    assert prompt.startswith(begin.removesuffix("<|assistant|>"))
    model = make(template_named("strict_objects"))
    with model.prompts() as prompts:
        ids = await prompts.ids(CHAT, {"messages": [*messages, USER]})
    assert ids == model.expected([*messages, USER], None)


async def test_a_tools_error_is_told(make: MakeModel) -> None:
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    with make(CHATML).prompts() as prompts:
        for content, shown in (("no file", "no file"), (None, ""), ([], "")):
            result = {"type": "tool_result", "tool_use_id": "c", "is_error": True}
            result |= {} if content is None else {"content": content}
            turns = [
                USER,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result]},
            ]
            prompt = await prompts.text(MESSAGES, {"messages": turns, "max_tokens": 1})
            assert f"<|tool|>Error: {shown}<|end|>" in prompt


async def test_the_last_turn_of_the_model_goes_on_in_messages(make: MakeModel) -> None:
    model = make(CHATML)
    turn: Json = {"role": "assistant", "content": "I am"}
    ids = model.expected(
        [USER, turn], None, add_generation_prompt=False, continue_final_message=True
    )
    with model.prompts() as prompts:
        body: Json = {"messages": [USER, turn], "max_tokens": 1}
        assert await prompts.ids(MESSAGES, body) == ids
        reply = await prompts.client.post(
            f"{MESSAGES}/count_tokens", json={"messages": [USER, turn]}
        )
    assert reply.json() == {"input_tokens": len(ids)}


@pytest.mark.parametrize("name", ["strict_objects", "text_or_object", "turns_alternate"])
@pytest.mark.parametrize("said", ["I am ", "I am", " I\n am \n\n"])
async def test_a_message_that_goes_on_has_the_white_space_that_transformers_leaves(
    name: str, said: str, make: MakeModel
) -> None:
    model = make(template_named(name))
    messages = [USER, {"role": "assistant", "content": said}]
    ids = model.expected(messages, None, add_generation_prompt=False, continue_final_message=True)
    with model.prompts() as prompts:
        body: Json = {"messages": messages, "continue_final_message": True}
        assert await prompts.ids(CHAT, body) == ids


async def test_the_changing_header_of_claude_code_is_left_out(make: MakeModel) -> None:
    blocks = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"},
        {"type": "text", "text": "You are Claude Code."},
    ]
    with make(CHATML).prompts() as prompts:
        body = {"system": blocks, "messages": [USER], "max_tokens": 1}
        prompt = await prompts.text(MESSAGES, body)
    assert prompt == "<|system|>You are Claude Code.<|end|><|user|>x<|end|><|assistant|>"


@pytest.mark.parametrize("named", [{"default", "tool_use"}, {"default", "rag"}, {"tool_use"}])
async def test_of_several_templates_transformers_choice_is_taken(
    named: set[str], make: MakeModel
) -> None:
    tools = "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}"
    model = make({name: f"{name}:{tools}{CHATML}" for name in named})
    with model.prompts() as prompts:
        for given in (None, TOOLS):
            body: Json = {"messages": [USER]} | ({} if given is None else {"tools": given})
            if given is None and "default" not in named:
                reply: httpx.Response = await prompts.client.post(CHAT, json=body)
                assert reply.status_code == 400
                assert "no chat template of the name default, only tool_use" in reply.text
            else:
                assert await prompts.ids(CHAT, body) == model.expected([USER], given)


async def test_calls_of_the_forms_before_this_one_are_read(make: MakeModel) -> None:
    model = make(template_named("text_or_object"))
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "a\nb"}}
    with model.prompts() as prompts:
        body: Json = {"messages": [USER, old, {"role": "function", "name": "f", "content": "r"}]}
        prompt = await prompts.text(CHAT, body)
        assert '{"name": "f", "arguments": {}}</tool_call>' in prompt
        assert "<tool_response>r</tool_response>" in prompt
        body = {"messages": [USER, {"role": "assistant", "tool_calls": [custom]}, RESULT]}
        assert json.dumps({"input": "a\nb"}) in await prompts.text(CHAT, body)
