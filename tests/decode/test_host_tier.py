"""The host's tier of workers: replies say what it has spared, and a worker drains with copies under
way."""

import asyncio
import random
import threading
from typing import Any

import pytest
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from engine.host_tiers import MIB, forget_device, tier_of
from kit.polling import LOOK_S
from worker.cluster import DEADLINE_S, TestWorker, decode_worker, prefill_worker, running, session

from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.tiers.block_copier import BlockCopier

SIZES: dict[str, Any] = {"host_cache_bytes": MIB, "host_cache_state_bytes": MIB}
DEPTH = 48


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


async def only_in_the_host(worker: TestWorker) -> None:
    """Wait until all that the worker's cache has is in its host's memory, and evict it."""

    async with asyncio.timeout(DEADLINE_S):
        while await worker.context.port.call(lambda engine: tier_of(engine).saving):
            await asyncio.sleep(LOOK_S)
    await worker.context.port.call(forget_device)


@pytest.mark.parametrize("here", [False, True])
async def test_a_reply_says_what_the_readers_host_has_spared(
    seeded: random.Random, here: bool
) -> None:
    """The reader is a prefill worker, or the rank itself."""
    prefill, decode = prefill_worker(**SIZES), decode_worker(**SIZES)
    reader = decode if here else prefill
    prompt = random_prompt(seeded, DEPTH + 2, DEPTH + 6)
    async with running(prefill, decode), session(decode) as router:
        for cached, host in ((0, 0), (DEPTH, 0), (DEPTH, DEPTH), (DEPTH, 0)):
            if host:
                await only_in_the_host(reader)
            _, answer = await router.start(prompt, greedy(5), [prefill], prefill_here=here)
            finished = await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 5)
            usage, source = finished.usage, finished.source
            assert (usage.cached_tokens, usage.cached_host_tokens) == (cached, host)
            assert (source.state_tokens, source.host_tokens) == (cached, host)
        assert (await reader.context.port.call(Engine.status)).host_slots
        await decode.clean()
        await prefill.clean()


async def test_a_worker_drains_while_prefixes_are_copied(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = prefill_worker(**SIZES), decode_worker()
    prompt = random_prompt(seeded, DEPTH + 2, DEPTH + 6)
    async with running(prefill, decode), session(decode) as router:
        gate, copy = threading.Event(), BlockCopier._copy

        def waits(*given: Any) -> float | None:
            assert gate.wait(DEADLINE_S)
            return copy(*given)

        monkeypatch.setattr(BlockCopier, "_copy", waits)
        _, answer = await router.start(prompt, greedy(5), [prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 5)
        assert (await prefill.context.port.call(Engine.status)).host_saving
        leaving = prefill.stop_soon(5.0)
        gate.set()
        await leaving
    assert not prefill.engine.audit()
