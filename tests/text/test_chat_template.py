"""Rendering messages with a checkpoint's template."""

import json
from datetime import datetime
from pathlib import Path

import pytest
import toy_tokenizer

from baton.text.chat_template import ChatTemplate
from baton.text.conversation import Message
from baton.text.errors import ChatTemplateError, TokenizerFileError

HELLO = [Message("user", ("hello",))]


def rendered(source: str, messages: list[Message] | None = None) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, now=lambda: datetime(2024, 2, 29))
    return template.render(HELLO if messages is None else messages)


def test_the_folders_template_and_special_tokens_make_the_prompt(tmp_path: Path) -> None:
    template = ChatTemplate.from_folder(toy_tokenizer.save_folder(tmp_path))
    assert template.render(HELLO) == "<s><|user|>hello<|end|><|assistant|>"
    assert template.render(HELLO, add_generation_prompt=False) == "<s><|user|>hello<|end|>"


def test_a_jinja_file_goes_before_the_config(tmp_path: Path) -> None:
    toy_tokenizer.save_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file: {{ messages[0].content }}")
    assert ChatTemplate.from_folder(tmp_path).render(HELLO) == "file: hello"


def test_of_several_named_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_folder(tmp_path).render(HELLO) == "D"


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hello"}'),
        ("{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}", '{"a": 1, "b": "<é>"}'),
        ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hello!"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 4 %}{{ ns.n }}", "4"),
        ("{{ 'tools' if tools else 'none' }}", "none"),
    ],
)
def test_templates_find_what_checkpoints_expect(source: str, prompt: str) -> None:
    assert rendered(source) == prompt


def test_a_template_gets_the_callers_variables() -> None:
    template = ChatTemplate("{{ enable_thinking }}")
    assert template.render(HELLO, variables={"enable_thinking": False}) == "False"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].name.first }}", "has no attribute"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ ().__class__.__bases__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{% for i in range(999999999) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_that_fails_says_why(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        rendered(source)


def test_no_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match=r"no chat template.*completions endpoint"):
        ChatTemplate.from_folder(tmp_path).render(HELLO)


def test_a_template_that_does_not_compile_is_refused_at_start() -> None:
    with pytest.raises(TokenizerFileError, match="does not compile: line 2"):
        ChatTemplate("fine\n{% if %}")


@pytest.mark.parametrize(
    ("said", "kept"),
    [("so far", "so far"), ("so far \n", "so far \n"), ("  so far ", "so far "), ("x", "x")],
)
def test_a_last_message_can_be_continued(said: str, kept: str) -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content.lstrip() }}</s>{% endfor %}<x>"
    messages = [Message("user", ("so far x",)), Message("assistant", (said,))]
    prompt = ChatTemplate(source).render(messages, continue_final_message=True)
    assert prompt == f"<user>so far x</s><assistant>{kept}"


def test_a_template_that_trims_messages_loses_the_space_at_the_end() -> None:
    source = "{% for m in messages %}[{{ m.content.strip() }}]{% endfor %}"
    messages = [Message("assistant", (" so far ",))]
    assert ChatTemplate(source).render(messages, continue_final_message=True) == "[so far"


@pytest.mark.parametrize("said", [(), (" ",), ("HELLO", " "), ("HELLO",)])
def test_a_last_message_without_text_or_one_that_is_changed_cannot_be(
    said: tuple[str, ...],
) -> None:
    template = ChatTemplate("{{ messages[-1].content[:5] }}")
    with pytest.raises(ChatTemplateError, match="last message"):
        template.render([Message("assistant", said)], continue_final_message=True)


def test_a_template_that_fails_beside_tools_keeps_the_system_where_it_is() -> None:
    source = (
        "{% if tools %}{{ tools | map(attribute='function') | tojson }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    messages = [Message("system", ("Be brief.",)), Message("user", ("a",)), Message("user", ("b",))]
    prompt = ChatTemplate(source).render(messages, add_generation_prompt=False)
    assert prompt == "[system]Be brief.[user]a[user]b"
