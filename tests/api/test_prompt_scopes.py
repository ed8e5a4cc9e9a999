"""Remembered parts of prompts serve the client that sent them, and nobody else."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_backend import FakeBackend

from baton.api import large_child as child
from baton.api import request_body
from baton.api.access.key_gate import KeyGate
from baton.api.access.keys import Key, Keyring, KeyScope, digest_of, new_key, write_keys
from baton.api.anthropic.body import MessagesBody
from baton.api.backend import ModelInfo
from baton.api.body import RequestBody
from baton.api.fields.request_fields import UnknownFields
from baton.api.http import make_app
from baton.api.large.held_bytes import BodyFile
from baton.api.large.job import EncodeJob, Parsed, ParseJob
from baton.api.openai.chat_schema import ChatBody
from baton.api.responses.body import ResponsesBody
from baton.api.text_service import LONG_CHARS, TextService
from baton.text.chat_template import ChatTemplate
from baton.text.tokenizer import Tokenizer

TEXTS = {name: new_key() for name in ("ada", "ben")}
LONG = "hello world " * 40
TURNS = [
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": LONG},
    {"role": "user", "content": "STOP"},
]
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]


class RoomyBackend(FakeBackend):
    """A backend with room for long prompts."""

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("toy", 1 << 20, self.tokenizer.vocab_size)]


class CountingTokenizer(Tokenizer):
    """Counts the characters that it was given."""

    characters = 0

    def encode_upto(self, text: str, most: int, add_special_tokens: bool = True) -> list[int] | int:
        self.characters += len(text)
        return super().encode_upto(text, most, add_special_tokens)


@pytest.fixture
def counting(folder: Path) -> Tokenizer:
    return CountingTokenizer.from_folder(folder)


@pytest.fixture
def service(counting: Tokenizer, folder: Path) -> Iterator[TextService]:
    made = TextService(counting, ChatTemplate.from_folder(folder))
    yield made
    made.close()


@pytest.fixture
def keys(tmp_path: Path) -> KeyGate:
    file = tmp_path / "keys.json"
    infer = frozenset({KeyScope.INFER})
    write_keys(file, [Key(name, digest_of(key), infer) for name, key in TEXTS.items()])
    return KeyGate(Keyring(file))


def connected(service: TextService, keys: KeyGate) -> httpx.AsyncClient:
    app = make_app(RoomyBackend(service.tokenizer), service, keys=keys)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://toy")


def body_for(path: str, **more: Any) -> dict[str, Any]:
    place = "input" if path == "/v1/responses" else "messages"
    tokens = {} if path == "/v1/responses" or "count" in path else {"max_tokens": 1}
    return {place: TURNS, **tokens, **more}


@pytest.mark.parametrize("path", PATHS)
async def test_another_key_or_salt_finds_nothing(
    path: str, service: TextService, counting: CountingTokenizer, keys: KeyGate
) -> None:
    async with connected(service, keys) as client:
        salts: list[dict[str, str]] = [{}, {"cache_salt": "one"}, {"cache_salt": "other"}]
        for salt in salts if "messages" not in path else salts[:1]:
            for key in TEXTS.values():
                for known in (False, True):
                    counting.characters = 0
                    headers = {"x-api-key": key}
                    reply = await client.post(path, json=body_for(path, **salt), headers=headers)
                    assert reply.status_code == 200, reply.text
                    assert (counting.characters > len(LONG)) != known, (salt, known)


KINDS: list[tuple[type[RequestBody], str]] = [
    (ChatBody, "/v1/chat/completions"),
    (ResponsesBody, "/v1/responses"),
    (MessagesBody, "/v1/messages"),
]


@pytest.mark.parametrize(("kind", "path"), KINDS)
async def test_a_large_body_is_its_keys_too(
    kind: type[RequestBody], path: str, service: TextService, counting: CountingTokenizer
) -> None:
    models = [ModelInfo("toy", 1 << 20, counting.vocab_size)]
    data = json.dumps(body_for(path)).encode()
    ids = set()
    for owner in (None, "ada", "ben"):
        for known in (False, True):
            counting.characters = 0
            job = ParseJob(kind, UnknownFields.WARN, models, owner)
            parsed = await child._parsed(service, job, data)
            assert (counting.characters > len(LONG)) != known, owner
            ids.add(parsed.prepared.prompts[0].tobytes())
    assert len(ids) == 1


async def test_a_large_body_takes_its_key_to_the_other_process(
    service: TextService, keys: KeyGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service.large is not None
    monkeypatch.setattr(request_body, "LARGE_BYTES", 0)
    parse, owners = service.large.parse, []

    async def noted(job: ParseJob, data: BodyFile) -> Parsed:
        owners.append(job.owner)
        return await parse(job, data)

    monkeypatch.setattr(service.large, "parse", noted)
    async with connected(service, keys) as client:
        for key in TEXTS.values():
            headers = {"x-api-key": key}
            await client.post(PATHS[0], json=body_for(PATHS[0]), headers=headers)
    assert owners == list(TEXTS)


async def test_a_long_text_takes_its_scope_to_the_other_process(
    service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []

    async def encode(job: EncodeJob, text: str) -> list[int]:
        jobs.append(job)
        return [1]

    assert service.large is not None
    monkeypatch.setattr(service.large, "encode", encode)
    await service.encode("x" * (LONG_CHARS + 1), add_special_tokens=False, scope=b"ada's")
    assert [job.scope for job in jobs] == [b"ada's"]
