"""Two tenants on the same workers: what one has cached, the other neither hits nor fetches, by any
channel and whatever the router says."""

import random

import pytest
from decode.test_state_returner import (
    COUNT,
    GRID,
    assert_right,
    decode,
    fetches,
    first_turn,
    prefill,
)
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from kit.polling import until
from worker.cluster import RouterClient, TestWorker, running, session

from baton.core.cache_salt import SHARED, make_salt
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.proto import common_pb2
from baton.worker.config import SendSnapshots, StateReturn
from baton.worker.prefix_fetcher import Outcome

ADA, BOB, EVE = make_salt("ada"), make_salt("bob"), make_salt("eve")


def no_fetch(worker: TestWorker) -> bool:
    return not any(fetches(worker, outcome) for outcome in Outcome)


async def state_of(worker: TestWorker, tokens: tuple[int, ...], salt: bytes) -> int:
    """Return how much of a prefix a request of `salt` could resume from there."""
    prefix = SaltedPrefix(tokens, salt)
    return await worker.context.port.call(lambda engine: engine.prefixes.state_tokens(prefix))


async def ask(
    router: RouterClient, p: TestWorker, prompt: tuple[int, ...], salt: bytes, cached: int
) -> None:
    _, answer = await router.start(prompt, greedy(9), [p], cache_salt=salt)
    await assert_right(answer, prompt, cached)


@pytest.mark.parametrize("channel", ["grpc", "nixl"])
async def test_a_second_turn_of_another_salt_hits_and_fetches_nothing(
    seeded: random.Random, channel: str
) -> None:
    p, d = prefill(channel=channel), decode(channel=channel)
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded, ADA)
        at = common_pb2.StateAt(worker=d.identity, tokens=kept)
        for salt, said in ((BOB, None), (SHARED, None), (EVE, at)):
            _, answer = await router.start(second, greedy(9), [p], cache_salt=salt, state_at=said)
            await assert_right(answer, second, 0)
            await d.clean()
            assert d.engine.counters.transfer_hit_tokens == 0, "nor is less KV sent"
            assert no_fetch(p) == (said is None), "the rank's own index names ADA's state to ADA"
        assert fetches(p, Outcome.ABSENT) == 1, "the router was wrong: the lender has none for EVE"
        await ask(router, p, second, ADA, kept)
        assert fetches(p, Outcome.FETCHED) == 1
        assert d.engine.counters.transfer_hit_tokens >= kept
        for worker in (p, d):
            await worker.clean()


async def test_an_eager_rank_returns_a_state_under_its_salt(seeded: random.Random) -> None:
    p, d = prefill(returns=StateReturn.EAGER), decode(returns=StateReturn.EAGER)
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded, ADA)
        await until(lambda: fetches(p, Outcome.FETCHED) == 1)
        await p.clean()
        assert await state_of(p, second, ADA) == kept
        assert await state_of(p, second, SHARED) == await state_of(p, second, BOB) == 0
        await ask(router, p, second, BOB, 0)
        await ask(router, p, second, ADA, kept)
        for worker in (p, d):
            await worker.clean()


async def test_a_prompts_last_snapshot_follows_it_under_its_salt(seeded: random.Random) -> None:
    p, d = prefill(), decode(snapshots=SendSnapshots.LAST, returns=StateReturn.OFF)
    async with running(p, d), session(d) as router:
        prompt = random_prompt(seeded, 3 * GRID + 1, 60)
        await ask(router, p, prompt, ADA, 0)
        await until(lambda: fetches(d, Outcome.FETCHED) == 1)
        await d.clean()
        assert await state_of(d, prompt, ADA) == 3 * GRID
        assert await state_of(d, prompt, SHARED) == await state_of(d, prompt, BOB) == 0
        await p.clean()


async def test_two_salts_fetch_the_same_tokens_at_once_each_for_itself(
    seeded: random.Random,
) -> None:
    """Requests that want one prefix share its fetch; those of another salt do not."""
    p, d = prefill(tickets=4), decode()
    async with running(p, d), session(d) as router:
        prompt = random_prompt(seeded, 2 * GRID, 2 * GRID)
        for salt in (ADA, BOB):
            _, answer = await router.start(prompt, greedy(COUNT), [p], cache_salt=salt)
            kept = (await answer.end()).state_tokens
        whole = (*prompt, *expected_tokens(HashModel(), prompt, COUNT))
        for worker in (p, d):
            await worker.clean()
        fetcher = p.service._prefixes.fetcher
        prefixes = [SaltedPrefix(whole[:kept], salt) for salt in (ADA, BOB, ADA)]
        first, second, again = (fetcher.start(d.identity, each) for each in prefixes)
        assert first is again is not second
        assert [await first, await second] == [Outcome.FETCHED] * 2
        for salt, tokens in ((ADA, kept), (BOB, kept), (EVE, 0), (SHARED, 0)):
            assert await state_of(p, whole, salt) == tokens
        for worker in (p, d):
            await worker.clean()
