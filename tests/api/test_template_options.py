"""A checkpoint's template is mended at the start, for bodies of every size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import Connect, FakeBackend

from baton.api import request_body
from baton.api.http import make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.parser_names import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    reasoning_format_of,
    tool_format_of,
)
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer

TEMPLATE = "{{ bos_token }}own {{ mood }}:{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def text(
    folder: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TextService]:
    """One service, so that its process for large bodies starts once."""
    file = tmp_path_factory.mktemp("mended") / "own template.jinja"
    file.write_text(TEMPLATE)
    options = TemplateOptions(file, {"mood": "gay"})
    service = TextService(tokenizer, ChatTemplate.from_folder(folder, options))
    yield service
    service.close()


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("variables", "mood"), [(None, "gay"), ({"mood": "sad"}, "sad"), ({"other": 1}, "gay")]
)
async def test_the_file_is_the_template_and_a_request_goes_before_the_defaults(
    variables: dict[str, Any] | None,
    mood: str,
    large: bool,
    connect: Connect,
    backend: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_body, "LARGE_BYTES", 0 if large else 1 << 20)
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": variables}
    async with connect() as client:
        reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    shown = backend.tokenizer.decode(backend.seen[-1].prompt_ids, skip_special_tokens=False)
    assert shown == f"<s>own {mood}:hi"


def test_the_options_pass_to_another_process_as_text() -> None:
    for options in (
        TemplateOptions(),
        TemplateOptions(Path("/a b/c"), {"x": [1, None, "é"]}, "hermes", "none"),
    ):
        assert TemplateOptions.from_json(options.to_json()) == options


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
WITH_TOOLS = "own:{{ messages[0].content }}{{ tools[0].function.name if tools }}"
MARKS = "{# <tool_call></tool_call><think></think> #}"


@pytest.mark.parametrize(
    ("tools", "reasoning", "marks", "calls", "thought"),
    [
        ("auto", "auto", MARKS, True, "so"),
        ("auto", "auto", "", False, None),
        ("hermes", "deepseek_r1", "", True, "so"),
        ("none", "none", MARKS, False, None),
        ("granite", "granite", MARKS, False, None),
    ],
)
async def test_calls_and_reasoning_have_the_form_that_the_options_name(
    tools: str,
    reasoning: str,
    marks: str,
    calls: bool,
    thought: str | None,
    tokenizer: Tokenizer,
    backend: FakeBackend,
) -> None:
    options = TemplateOptions(None, {}, tools, reasoning)
    service = TextService(
        tokenizer,
        ChatTemplate(WITH_TOOLS + marks, options=options),
        alone=True,
    )
    says = '<think>so</think><tool_call>{"name":"f"}</tool_call>'
    backend.says = says
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 56}
    try:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(make_app(backend, service)), base_url="http://toy"
        ) as client:
            if service.tools is None:  # a model without calls cannot have tools
                refused = await client.post("/v1/chat/completions", json=body | {"tools": TOOLS})
                assert refused.status_code == 400
            else:
                body |= {"tools": TOOLS}
            reply = await client.post("/v1/chat/completions", json=body)
    finally:
        service.close()
    message = reply.json()["choices"][0]["message"]
    assert message.get("reasoning_content") == thought
    if calls:
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    else:
        assert says.removeprefix("<think>so</think>" if thought else "") == message["content"]


def test_every_name_of_a_peer_has_a_form() -> None:
    assert all(tool_format_of(name, "") is not None for name in TOOL_PARSERS)
    assert all(reasoning_format_of(name, "") is not None for name in REASONING_PARSERS)
    assert tool_format_of("auto", "") is tool_format_of("none", "<tool_call>") is None
