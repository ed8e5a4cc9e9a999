"""A checkpoint's template is mended at the start, for bodies of every size."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_backend import Connect, FakeBackend

from baton.api import request_body
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
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
    for options in (TemplateOptions(), TemplateOptions(Path("/a b/c"), {"x": [1, None, "é"]})):
        assert TemplateOptions.from_json(options.to_json()) == options
