"""A prompt's junctions, on their way from the router to the prefill worker's cache."""

import random

import pytest
from engine.engines import PAGE, greedy, random_prompt
from engine.hash_model import VOCAB, HashModel, expected_tokens
from worker.cluster import decode_worker, prefill_worker, running, session

GRID = 2 * PAGE
CHUNK = 4 * GRID


@pytest.mark.parametrize("asked", [True, False])
async def test_the_second_of_two_queued_requests_hits_at_the_junction(
    seeded: random.Random, asked: bool
) -> None:
    """It finds, without the junction, the state at the end of the last chunk that both share."""
    prefill = prefill_worker(chunk=CHUNK, snapshots_per_prefill=2, cached_snapshots=40)
    decode = decode_worker()
    first = random_prompt(seeded, 3 * CHUNK, 4 * CHUNK)
    shared = seeded.randrange(CHUNK + GRID, CHUNK + 2 * GRID)  # before the spread one
    second = (*first[:shared], (first[shared] + 1) % VOCAB, *random_prompt(seeded, 10, 30))
    junction = shared // GRID * GRID
    async with running(prefill, decode), session(decode) as router:
        prefill.model.gate.allow(0)  # both are queued before the first chunk is read
        answers = [
            (await router.start(prompt, greedy(9), [prefill], junctions=junctions))[1]
            for prompt, junctions in ((first, (junction,) if asked else ()), (second, ()))
        ]
        await prefill.opened(2)
        prefill.model.gate.open()
        cached = []
        for prompt, answer in zip((first, second), answers, strict=True):
            cached.append((await answer.end()).usage.cached_tokens)
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        assert cached == [0, junction if asked else CHUNK]
        await prefill.clean()
        await decode.clean()
