"""A model of one chat template: its prompts by Baton's API, and by transformers."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import toy_tokenizer
from fake_backend import FakeBackend

from baton.api.http import make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")
TEMPLATES = Path(__file__).resolve().parent / "chat_templates"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
Json = dict[str, Any]


class Prompts:
    """Bodies go to the application; the ids of their prompts come back."""

    def __init__(self, client: httpx.AsyncClient, backend: FakeBackend) -> None:
        self.client = client
        self.backend = backend

    async def ids(self, path: str, body: Json) -> list[int]:
        reply = await self.client.post(path, json=body)
        assert reply.status_code == 200, f"{path} {json.dumps(body)} -> {reply.text}"
        return list(self.backend.seen[-1].prompt_ids)

    async def text(self, path: str, body: Json) -> str:
        return self.backend.tokenizer.decode(await self.ids(path, body), False)


class Model:
    """A folder with one template, Baton's side of it and transformers'."""

    def __init__(
        self,
        folder: Path,
        template: str | Mapping[str, str],
        options: TemplateOptions | None = None,
    ) -> None:
        """template: the only one, or several by name."""
        toy_tokenizer.save_folder(folder)
        named = {"default": template} if isinstance(template, str) else template
        (folder / "additional_chat_templates").mkdir()
        for name, source in named.items():
            path = "chat_template" if name == "default" else f"additional_chat_templates/{name}"
            (folder / f"{path}.jinja").write_text(source, encoding="utf-8")
        self.tokenizer = Tokenizer.from_folder(folder)
        self.text = TextService(self.tokenizer, ChatTemplate.from_folder(folder, options))
        self.reference = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"),
            bos_token="<s>",
            eos_token="<|end|>",
            chat_template=template if isinstance(template, str) else dict(template),
        )

    @contextmanager
    def prompts(self) -> Iterator[Prompts]:
        backend = FakeBackend(self.tokenizer, says="ok")
        transport = httpx.ASGITransport(make_app(backend, self.text))
        yield Prompts(httpx.AsyncClient(transport=transport, base_url="http://toy"), backend)

    def expected(self, messages: list[Json], tools: list[Json] | None, **more: Any) -> list[int]:
        """Return transformers' ids."""
        more = {"add_generation_prompt": True} | more
        found: list[int] = self.reference.apply_chat_template(
            messages, tools=tools, return_dict=False, **more
        )
        return found

    def expected_null(self, messages: list[Json], tools: list[Json] | None) -> list[int]:
        """Return the ids of messages whose null contents reach the template, which
        `apply_chat_template` leaves out."""
        ((prompt,), _) = transformers.utils.chat_template_utils.render_jinja_template(
            [messages], tools, chat_template=self.text.template.source, add_generation_prompt=True
        )
        return self.tokenizer.encode(prompt, add_special_tokens=False)


@contextmanager
def made_model(
    folder: Path, template: str | Mapping[str, str], options: TemplateOptions | None = None
) -> Iterator[Model]:
    """Yield a model, and end its threads behind it."""
    model = Model(folder, template, options)
    try:
        yield model
    finally:
        model.text.close()


def template_named(name: str) -> str:
    """Return one of the test templates."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
