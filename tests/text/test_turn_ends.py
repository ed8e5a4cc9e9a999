"""The ends of answers that a chat template names: one set of ids for all who look for them."""

import json
import logging
from pathlib import Path

import pytest
import toy_tokenizer
from tokenizers import AddedToken

from baton.text.chat_template import ChatTemplate
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer
from baton.text.turn_ends import turn_ends

TOKENS = {text: number for number, text in enumerate(
    ["<|im_start|>", "<|im_end|>", "<|im_end|>!", "<|endoftext|>", "<|eom_id|>", "<|user|>", "</s>"]
)}  # fmt: skip
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WRITTEN = CHATML.replace("<|im_end|>\n", "{END}")
STRICT = WRITTEN.replace("{% for", "{% if tools %}{{ raise_exception('no') }}{% endif %}{% for", 1)
PARTS = WRITTEN.replace("m.content", "m.content[0].text")
IN_TEMPLATE = WRITTEN.replace(
    "{END}", "{% if m.role == 'assistant' %}{{ '<|im_end|>' }}{% endif %}"
)
END_OF_ALL = "{% if not add_generation_prompt %}<|endoftext|>{% endif %}"

REASONED = "{% if m.thinking %}<|block|>{{ m.thinking }}<|end|>{% endif %}"
CALLED = "{% if m.tool_calls %}<call>{{ m.tool_calls | tojson }}{% endif %}"


def turns(written: str) -> str:
    """Return a template in which turns of the model are written like this."""
    return (
        "{% for m in messages %}<|open|>{{ m.role }}\n"
        "{% if m.role == 'assistant' %}" + written + "{% else %}{{ m.content }}{% endif %}"
        "<|close|>\n{% endfor %}"
    )


def ends_of(source: str | dict[str, str], *, tokens: dict[str, int] = TOKENS) -> set[str]:
    """Return the texts of the ends, without `<|eom_id|>`, which the tokenizer names."""
    ids = turn_ends(ChatTemplate(source), tokens)
    return {text for text, number in tokens.items() if number in ids} - {"<|eom_id|>"}


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("<|im_end|>\n", {"<|im_end|>"}),
        ("\n  <|im_end|>\n", {"<|im_end|>"}),
        (" </s>", {"</s>"}),
        ("<|im_end|>!<|endoftext|>", {"<|im_end|>!"}),  # the longest
        ("<|im_end|><|endoftext|>", {"<|im_end|>"}),  # the first
        ("\n", set()),
        ("", set()),
        (".<|im_end|>", set()),  # the model wrote no dot
        ("<|unknown|>", set()),  # no token, but letters
        ("<|user|>", {"<|user|>"}),
    ],
)
@pytest.mark.parametrize("source", [WRITTEN, STRICT, PARTS])
def test_the_token_behind_a_turns_text_ends_answers(
    source: str, written: str, found: set[str]
) -> None:
    assert ends_of(source.replace("{END}", written)) == found


def test_a_turn_that_only_the_assistant_ends() -> None:
    assert ends_of(IN_TEMPLATE) == {"<|im_end|>"}


def test_the_end_of_a_turn_goes_before_the_end_of_the_conversation() -> None:
    assert ends_of(CHATML + END_OF_ALL) == {"<|im_end|>"}


def test_a_token_that_opens_the_turn_does_not_end_it() -> None:
    assert ends_of("{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|user|>") == set()


def ends_among(written: str, *named: str) -> set[str]:
    """Return the ends of such turns where the configs name those ends."""
    marks = ("<|open|>", "<|close|>", "<|block|>", "<|end|>", "<call>", "</said>", "<think>")
    ids = {mark: number for number, mark in enumerate(marks)}
    found = turn_ends(ChatTemplate(turns(written)), ids, {ids[mark] for mark in named})
    return {mark for mark, number in ids.items() if number in found}


def test_a_token_behind_a_part_of_a_turn_does_not_end_it() -> None:
    before_calls = "{{ m.content }}</said>" + CALLED  # as ERNIE's </response>
    behind_reasoning = REASONED + "<|block|>{{ m.content }}<|end|>"
    assert ends_among(before_calls) == {"<|close|>"}
    assert ends_among(behind_reasoning) == {"<|close|>"}
    assert ends_among("<|block|>{{ m.content }}<|end|>said") == {"<|end|>"}
    closed = REASONED + "<|block|>{{ m.content }}<|end|>said"  # as Kimi's <|close|>response<|sep|>
    assert ends_among(closed) == set()
    harmony = turns(behind_reasoning).replace("<|close|>", "<|end|>")
    assert ends_of(harmony, tokens={"<|end|>": 0, "<|block|>": 1, "<|open|>": 2}) == set()


def test_the_end_of_a_last_turn_before_its_calls_ends_answers() -> None:
    last = "{% if loop.last and m.tool_calls %}<|close|>\n<|open|>assistant\n{% endif %}"
    assert ends_among("{{ m.content }}" + last + CALLED) == {"<|close|>"}, "as Nemotron's"


def test_what_opens_an_answer_unasked_does_not_end_it() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<think>"
    assert ends_of(source, tokens={"<think>": 1}) == set()


def test_a_turn_that_ends_as_the_configs_say_needs_no_other_end() -> None:
    assert ends_among("{{ m.content }}</said>") == {"</said>"}
    assert ends_among("{{ m.content }}</said>", "<|close|>") == set()
    assert ends_among("{{ m.content }}</said>", "<|end|>") == {"</said>"}


def test_each_named_template_counts() -> None:
    tool_use = CHATML.replace("<|im_end|>", "</s>")
    assert ends_of({"default": CHATML, "tool_use": tool_use}) == {"<|im_end|>", "</s>"}
    assert ends_of({"rag": CHATML}) == set(), "no conversation is rendered with it"


def test_a_template_that_refuses_or_none_ends_nothing() -> None:
    assert ends_of("{{ raise_exception('no') }}") == set()
    assert ends_of({}) == set()
    assert ends_of(CHATML, tokens={}) == set()


def test_the_end_of_a_message_with_calls_counts_wherever_it_is_a_token() -> None:
    assert turn_ends(ChatTemplate(None), TOKENS) == {TOKENS["<|eom_id|>"]}


def folder_of(folder: Path, template: str, *marks: str, special: bool = True) -> Path:
    """Return a model folder whose configs name `<s>` as the only end."""
    backend = toy_tokenizer.byte_level()
    backend.add_tokens([AddedToken(mark, special=special) for mark in marks])
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<s>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("special", [True, False])
def test_a_tokenizer_ends_answers_where_the_template_ends_turns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, special: bool
) -> None:
    folder = folder_of(tmp_path, CHATML, "<|im_end|>", special=special)
    with caplog.at_level(logging.INFO):
        tokenizer = Tokenizer.from_folder(folder)
    (end,) = tokenizer.encode("<|im_end|>")
    assert tokenizer.stop_ids == {tokenizer.eos_id, end}
    (line,) = (r.getMessage() for r in caplog.records if "answers also end" in r.getMessage())
    assert f"'<|im_end|>' ({end})" in line and str(folder) in line


@pytest.mark.parametrize("named", ["config.json", "generation_config.json", ""])
def test_an_end_that_a_config_names_is_not_told_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    folder = folder_of(
        tmp_path, CHATML if named else CHATML.replace("<|im_end|>", "<s>"), "<|im_end|>"
    )
    (end,) = Tokenizer.from_folder(folder).encode("<|im_end|>")
    if named:
        (folder / named).write_text(json.dumps({"eos_token_id": [end]}))
    with caplog.at_level(logging.INFO):
        caplog.clear()
        tokenizer = Tokenizer.from_folder(folder)
    assert (end in tokenizer.stop_ids) == bool(named)
    assert "answers also end" not in caplog.text


@pytest.mark.parametrize("named", ["config.json", "eos_token"])
def test_a_tokenizer_adds_no_end_to_one_that_is_named(tmp_path: Path, named: str) -> None:
    end = "<s>" if named == "eos_token" else "<|im_end|>"
    written = CHATML.replace("<|im_end|>", f"</said>{end}")
    folder = folder_of(tmp_path, written, "<|im_end|>", "</said>")
    ends = set(Tokenizer.from_folder(folder).encode(end))
    if named == "config.json":
        (folder / named).write_text(json.dumps({"eos_token_id": [*ends]}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.stop_ids == ends | {tokenizer.eos_id}


def test_an_operators_template_adds_its_end_to_that_of_the_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, CHATML, "<|im_end|>", "</s>")
    other = tmp_path / "other.jinja"
    other.write_text(CHATML.replace("<|im_end|>", "</s>"))
    tokenizer = Tokenizer.from_folder(folder, TemplateOptions(other))
    ends = {tokenizer.piece(token) for token in tokenizer.stop_ids}
    assert ends == {"<s>", "<|im_end|>", "</s>"}
    again = Tokenizer.from_folder(folder, more_stop_ids=tokenizer.stop_ids)
    assert again.stop_ids == tokenizer.stop_ids, "an engine that has not that file"


def test_a_template_that_does_not_compile_ends_nothing(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "{% for", "<|im_end|>")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.stop_ids == {tokenizer.eos_id}
