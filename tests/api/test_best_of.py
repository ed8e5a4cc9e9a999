"""`best_of` of `/v1/completions`."""

import openai
import pytest
from api.test_openai_client import connected
from fake_backend import FakeBackend, Serve
from kit.narrowing import present

from baton.api.backend import GenerateRequest
from baton.core.logprobs import TokenLogprob

SCORES = (-3.0, -1.0, -2.0, -4.0)
"""The log probability of every token of the first answer, of the second, and so on."""


@pytest.fixture
def backend(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    def logprobs(request: GenerateRequest, ids: list[int]) -> tuple[TokenLogprob, ...]:
        if request.sampling.logprobs is None:
            return ()
        place = [each.request_id for each in backend.seen].index(request.request_id)
        return tuple(TokenLogprob(i, SCORES[place]) for i in ids)

    monkeypatch.setattr(backend, "_logprobs", logprobs)
    return backend


async def test_the_likeliest_of_all_answers_are_returned_best_first(
    backend: FakeBackend, serve: Serve
) -> None:
    async with connected(serve) as client:
        reply = await client.completions.create(
            model="toy", prompt="x", best_of=4, n=2, seed=3, logprobs=0, max_tokens=5
        )
    assert len(backend.seen) == 4
    assert [choice.index for choice in reply.choices] == [0, 1]
    scores = [present(present(choice.logprobs).token_logprobs) for choice in reply.choices]
    assert [of_choice[0] for of_choice in scores] == [-1.0, -2.0]
    usage = present(reply.usage)
    assert usage.completion_tokens == 4 * usage.prompt_tokens


async def test_scores_that_were_not_asked_for_are_not_shown(
    backend: FakeBackend, serve: Serve
) -> None:
    async with connected(serve) as client:
        reply = await client.completions.create(model="toy", prompt="x", best_of=2, max_tokens=5)
    assert [choice.logprobs for choice in reply.choices] == [None]
    assert [request.sampling.logprobs for request in backend.seen] == [0, 0]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"best_of": 1, "n": 2}, "best_of is 1"),
        ({"best_of": 129}, "best_of is 129"),
        ({"best_of": 2, "stream": True}, "cannot be streamed"),
    ],
)
async def test_a_best_of_that_cannot_be_is_refused(
    serve: Serve, more: dict[str, object], words: str
) -> None:
    async with connected(serve) as client:
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            await client.completions.create(model="toy", prompt="x", **more)  # type: ignore[call-overload]
    assert caught.value.param == "best_of"
