"""The frames of our own that a request runs through in a router, behind the HTTP application, whose
own `tests/api/test_passes.py` bounds. No clock, socket or heartbeat is part of them.

A bound that a change needs to raise says so in that change.
"""

import random

import pytest
from frame_count import FrameCount
from memory_rank import MemoryRanks, memory_router

from baton.api.backend import GenerateRequest, ModelInfo
from baton.api.requests import RequestLabels, make_requests
from baton.core.finish import Finished
from baton.core.sampling_params import SamplingParams
from baton.router.backend import RouterBackend

MODEL = ModelInfo("toy", 1 << 16, 8192)
PROMPT = 64
TOKENS = 32


def request(tokens: int, rng: random.Random) -> GenerateRequest:
    ids = [rng.randrange(10, 250) for _ in range(PROMPT)]
    (made,) = make_requests(ids, SamplingParams(max_tokens=tokens), 1, RequestLabels())
    return made


async def frames(backend: RouterBackend, ranks: MemoryRanks, made: GenerateRequest) -> int:
    """Return the frames from the request's arrival to its end, its session's included."""
    events = 0
    with FrameCount() as counted:
        async for event in backend.generate(made):
            if isinstance(event, Finished):
                assert event.error is None
                continue
            events += 1
            for rank in ranks.dialled:
                rank.step()
    assert events == made.sampling.max_tokens, "each token comes by itself"
    return counted.frames


async def least_frames(pairs: int, tokens: int) -> int:
    """Return the frames of a request of which others before it have warmed all caches."""
    rng, ranks = random.Random(), MemoryRanks()
    async with memory_router(MODEL, pairs, ranks) as backend:
        return min([await frames(backend, ranks, request(tokens, rng)) for _ in range(4)])


@pytest.mark.parametrize(("pairs", "most"), [(1, 233), (16, 239)])
async def test_a_request_passes_few_frames_of_the_router(pairs: int, most: int) -> None:
    assert await least_frames(pairs, 1) <= most


async def test_a_token_passes_few_frames_of_the_router() -> None:
    few, many = [await least_frames(1, count) for count in (TOKENS, 2 * TOKENS)]
    assert (many - few) / TOKENS <= 21
