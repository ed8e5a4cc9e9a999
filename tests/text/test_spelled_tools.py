"""Conversations with tools for templates that write texts alone, or a part of them."""

import json

import pytest

from baton.text.chat_template import ChatTemplate
from baton.text.conversation import CallArguments, Message, PastCall
from baton.text.reply_parser import ReplyParser
from baton.text.template_options import TemplateOptions
from baton.text.tool_calls import HERMES, LFM2, ToolCall, parameters_of

ROLES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns') }}{% endif %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
)
OFFERS = "{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}" + ROLES
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds é.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
ASK = Message("user", ("2 + 5?",))
CALLS = Message(
    "assistant",
    ("I add.",),
    calls=(
        PastCall("add", CallArguments.of({"a": 2}), "c1"),
        PastCall("add", CallArguments.of('{"a": 5'), "c2"),
    ),
)
RESULTS = (
    Message("tool", ("two",), more={"tool_call_id": "c1"}),
    Message("tool", ("five",), more={"tool_call_id": "c2"}),
)
FIRST = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
SECOND = FIRST.replace("2", "5")


def test_a_template_of_texts_is_given_tools_and_calls_as_texts() -> None:
    template = ChatTemplate(ROLES)
    assert template.tools is HERMES
    system = Message("system", ("Be kind.",))
    prompt = template.render([system, ASK, CALLS, *RESULTS], tools=TOOLS)
    first, behind = prompt.split("<user>")
    assert first.startswith("<system>Be kind.\nYou have tools.")
    assert json.dumps(TOOLS[0]["function"], ensure_ascii=False) in first
    assert '<tool_call>\n{"name": "...", "arguments": {}}\n</tool_call>' in first
    assert behind == (
        f"2 + 5?</><assistant>I add.\n{FIRST}\n{SECOND}</><tool>two</><tool>five</><assistant>"
    )


def test_without_tools_the_prompt_is_the_templates() -> None:
    assert ChatTemplate(ROLES).render([ASK]) == "<user>2 + 5?</><assistant>"
    assert ChatTemplate(ROLES).render([ASK], tools=[]) == "<user>2 + 5?</><assistant>"


def test_a_template_that_wants_turns_gets_results_as_the_users() -> None:
    """And the offer in the first question, since it reads no system message."""
    prompt = ChatTemplate(TURNS).render([ASK, CALLS, *RESULTS], tools=TOOLS)
    offer, calls, results = prompt.split("</>")[:3]
    assert offer.startswith("<user>You have tools.") and offer.endswith("\n2 + 5?")
    assert calls == f"<assistant>I add.\n{FIRST}\n{SECOND}"
    assert results == (
        "<user><tool_response>\ntwo\n</tool_response>\n<tool_response>\nfive\n</tool_response>"
    )


def test_calls_have_the_form_of_a_template_that_offers_tools_and_writes_no_calls() -> None:
    template = ChatTemplate(OFFERS)
    assert template.tools is not None and template.tools.begin == LFM2.begin
    prompt = template.render([ASK, CALLS, *RESULTS], tools=TOOLS)
    calls = '[{"name": "add", "arguments": {"a": 2}}, {"name": "add", "arguments": {"a": 5}}]'
    assert f"I add.\n<|tool_call_start|>{calls}<|tool_call_end|></>" in prompt
    assert prompt.startswith("<|tool_list_start|>") and "You have tools" not in prompt


FENCED = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{}\n```<｜tool▁call▁end｜>"


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("granite", '<|tool_call|>[{"name": "add", "arguments": {}}]'),
        ("llama3", '<|python_tag|>\n{"name": "add", "arguments": {}}'),
        ("deepseek_v3", f"<｜tool▁calls▁begin｜>{FENCED}<｜tool▁calls▁end｜>"),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
            "<｜tool▁calls▁end｜>",
        ),
    ],
)
def test_the_call_that_is_written_is_read_as_one(name: str, written: str) -> None:
    template = ChatTemplate(ROLES, options=TemplateOptions(tool_parser=name))
    turn = Message("assistant", calls=(PastCall("add"),))
    assert f"<assistant>{written}</>" in template.render([ASK, turn])
    assert written.replace("add", "...") in template.render([ASK], tools=TOOLS)
    parser = ReplyParser(None, template.tools, parameters=parameters_of(TOOLS))
    assert [*parser.push(written), *parser.finish()] == [ToolCall("add", "{}", whole=True)]


@pytest.mark.parametrize("name", ["none", "kimi_k2"])
def test_what_cannot_be_written_in_a_form_is_left_to_the_template(name: str) -> None:
    template = ChatTemplate(ROLES, options=TemplateOptions(tool_parser=name))
    assert template.render([ASK, CALLS]) == "<user>2 + 5?</><assistant>I add.</><assistant>"


def test_a_template_with_a_form_of_tools_that_is_not_known_has_none() -> None:
    assert ChatTemplate("{{ tools }}" + ROLES).tools is None
    assert ChatTemplate(None).tools is None
