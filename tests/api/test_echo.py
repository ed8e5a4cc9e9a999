"""Prompts that completions repeat, and where each token begins in the text, for every kind of
tokenizer."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import toy_tokenizer
from fake_backend import FakeBackend

from baton.api.http import MetricsPage, make_app
from baton.api.text_service import TextService
from baton.text.chat_template import ChatTemplate
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

KINDS = {
    "byte_level": toy_tokenizer.byte_level,
    "byte_level_in_a_sequence": toy_tokenizer.decoded_in_sequence,
    "byte_fallback": toy_tokenizer.byte_fallback,
    "word_piece": toy_tokenizer.word_piece,
}
PROMPT, ANSWER = "hello world 日é", "hello 😀 world"


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(KINDS[request.param](), SpecialTokens())


@pytest.fixture
def text(tokenizer: Tokenizer) -> Iterator[TextService]:
    service = TextService(tokenizer, ChatTemplate(None))
    yield service
    service.close()


@pytest.fixture
def backend(tokenizer: Tokenizer) -> FakeBackend:
    return FakeBackend(tokenizer, says=ANSWER)


@asynccontextmanager
async def connected(backend: FakeBackend, text: TextService) -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(backend, text, lambda: MetricsPage(b"", "text/plain"))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        yield client


async def completed(client: httpx.AsyncClient, stream: bool, **body: Any) -> list[dict[str, Any]]:
    """Return the choices of a completion, with the parts of each stream joined."""
    body = {"max_tokens": 40, "logprobs": 0, "stream": stream, **body}
    reply = await client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    if not stream:
        return list(reply.json()["choices"])
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    parts = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    found = []
    for index in range(max(part["index"] for part in parts) + 1):
        own = [part for part in parts if part["index"] == index]
        scores: dict[str, list[Any]] = {}
        for part in own:
            for name, values in part["logprobs"].items():
                scores.setdefault(name, []).extend(values)
        found.append({"text": "".join(p["text"] for p in own), "logprobs": scores})
    return found


def check_tiled(choice: dict[str, Any], tokens: int) -> None:
    """Check that there are so many tokens, that each is scored, and that they tile the text."""
    offsets, text = choice["logprobs"]["text_offset"], choice["text"]
    assert {len(values) for values in choice["logprobs"].values()} == {tokens}
    assert offsets[0] == 0
    assert offsets == sorted(offsets) and offsets[-1] <= len(text)


@pytest.mark.parametrize("stream", [False, True])
async def test_text_is_repeated_as_it_came_and_the_answer_continues_it(
    tokenizer: Tokenizer, backend: FakeBackend, text: TextService, stream: bool
) -> None:
    prompt, answer = tokenizer.encode(PROMPT), tokenizer.encode(ANSWER)
    async with connected(backend, text) as client:
        (choice,) = await completed(client, stream, prompt=PROMPT, echo=True)
        (alone,) = await completed(client, stream, prompt=PROMPT)
    # What the tokenizer itself makes of both, but for characters that it does not know.
    continued = tokenizer.decode(prompt + answer)[len(tokenizer.decode(prompt)) :]
    assert choice["text"] == PROMPT + continued
    assert alone["text"] == continued
    check_tiled(choice, len(prompt) + len(answer))
    found = choice["logprobs"]["text_offset"]
    begins = [begin for begin, _ in tokenizer.spans(PROMPT)]
    ends = [0, *(end for _, end in tokenizer.spans(PROMPT))]
    assert all(
        offset == begin or (offset == end and PROMPT[end:begin].isspace())
        for offset, begin, end in zip(found, begins, ends, strict=False)
    )
    # The answer's tokens begin where they do in the whole, each as far behind the prompt.
    assert [o - len(PROMPT) for o in found[len(prompt) :]] == alone["logprobs"]["text_offset"]
    for k, offset in enumerate(alone["logprobs"]["text_offset"]):
        before = tokenizer.decode(prompt + answer[:k])[len(tokenizer.decode(prompt)) :]
        assert continued[:offset] == before.removesuffix("\ufffd").rstrip("\ufffd")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("skip", [False, True])
async def test_ids_are_repeated_as_the_text_that_they_stand_for(
    tokenizer: Tokenizer, backend: FakeBackend, text: TextService, stream: bool, skip: bool
) -> None:
    special = min(tokenizer.special_ids, default=0)
    prompt = [special, *tokenizer.encode(PROMPT)]
    body = {"prompt": prompt, "echo": True, "skip_special_tokens": skip}
    async with connected(backend, text) as client:
        (choice,) = await completed(client, stream, **body)
    assert choice["text"].startswith(tokenizer.decode(prompt, skip))
    check_tiled(choice, len(prompt) + len(tokenizer.encode(ANSWER)))
    if tokenizer.special_ids:
        width = 0 if skip else len(str(tokenizer.piece(special)))
        assert choice["logprobs"]["text_offset"][1] == width


async def test_a_prompt_that_is_cut_is_repeated_as_far_as_it_is_computed(
    tokenizer: Tokenizer, backend: FakeBackend, text: TextService
) -> None:
    body = {"prompt": PROMPT, "echo": True, "truncate_prompt_tokens": 2}
    async with connected(backend, text) as client:
        (choice,) = await completed(client, False, **body)
    assert choice["text"].startswith(tokenizer.decode(tokenizer.encode(PROMPT)[-2:]))
    check_tiled(choice, 2 + len(tokenizer.encode(ANSWER)))


@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_are_scored_without_an_answer(
    tokenizer: Tokenizer, backend: FakeBackend, text: TextService, stream: bool
) -> None:
    prompts = ["hello", PROMPT]
    async with connected(backend, text) as client:
        choices = await completed(client, stream, prompt=prompts, echo=True, max_tokens=0)
    assert [choice["text"] for choice in choices] == prompts
    for choice, prompt in zip(choices, prompts, strict=True):
        check_tiled(choice, len(tokenizer.encode(prompt)))
        assert choice["logprobs"]["token_logprobs"][0] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_each_of_several_answers_continues_its_prompt(
    tokenizer: Tokenizer, backend: FakeBackend, text: TextService, stream: bool
) -> None:
    backend.says = None  # the prompt again
    async with connected(backend, text) as client:
        choices = await completed(
            client, stream, prompt=["hello", "hello world"], n=2, echo=True, logprobs=0
        )
    between = "" if tokenizer.is_byte_level else " "
    expected = [f"{prompt}{between}{prompt}" for prompt in ("hello", "hello world")]
    assert [c["text"] for c in choices] == [each for each in expected for _ in range(2)]
