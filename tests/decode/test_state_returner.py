"""The state that a turn leaves at a rank goes to the prefill worker of the next, and saves it the
answer that was generated. What goes wrong on that way costs time, never a request."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from engine.engines import PAGE, greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from kit.polling import until
from worker.cluster import (
    Answer,
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)

from baton.core.cache_salt import SHARED
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.channels import frames
from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.memory.segments import Kind
from baton.worker.config import SendSnapshots, StateReturn
from baton.worker.prefix_fetcher import Outcome
from baton.worker.prefix_holder import PrefixHolder

GRID = 16  # of the hash model's snapshots, at prefill and at decode
COUNT = 40


def prefill(name: str = "p0", returns: StateReturn = StateReturn.DEMAND, **more: Any) -> TestWorker:
    options = {"canary": True, "tickets": 2} | more
    return prefill_worker(name, worker={"state_return": returns}, **options)


def decode(
    name: str = "d0",
    returns: StateReturn = StateReturn.DEMAND,
    snapshots: SendSnapshots = SendSnapshots.OFF,
    **more: Any,
) -> TestWorker:
    worker = {"state_return": returns, "send_snapshots": snapshots}
    return decode_worker(name, worker=worker, canary=True, **more)


def labels(worker: TestWorker) -> dict[str, str]:
    return {"worker": worker.context.worker_id, "role": worker.context.config.role.value}


def moved(worker: TestWorker, kind: Kind, direction: str) -> int:
    name = kind.name.lower()
    return int(
        worker.context.metrics.registry.get_sample_value(
            f"baton_worker_{direction}_bytes_total",
            labels(worker) | {"kind": name},
        )
        or 0
    )


def fetches(worker: TestWorker, outcome: Outcome) -> int:
    value = worker.context.metrics.registry.get_sample_value(
        "baton_worker_prefix_fetches_total", labels(worker) | {"outcome": outcome.value}
    )
    return int(value or 0)


async def first_turn(
    router: RouterClient, worker: TestWorker, seeded: random.Random, salt: bytes = SHARED
) -> tuple[tuple[int, ...], int]:
    """(the next turn's prompt, tokens whose state the rank has kept)"""
    prompt = random_prompt(seeded, 30, 50)
    _, answer = await router.start(prompt, greedy(COUNT), [worker], cache_salt=salt)
    finished = await answer.end()
    assert answer.token_ids == expected_tokens(HashModel(), prompt, COUNT), finished
    # The last token was sampled, and never computed.
    assert finished.state_tokens == (len(prompt) + COUNT - 1) // GRID * GRID > len(prompt)
    return (*prompt, *answer.token_ids, *random_prompt(seeded, 5, 30)), finished.state_tokens


async def assert_right(answer: Answer, prompt: tuple[int, ...], cached: int) -> None:
    finished = await answer.end()
    assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
    assert finished.usage.cached_tokens == cached


async def test_a_second_turn_hits_what_the_first_has_generated(seeded: random.Random) -> None:
    p, d = prefill(), decode()
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept)
        assert fetches(p, Outcome.FETCHED) == 1
        size = p.engine.plan.slot_layout.state_bytes + HEADER_BYTES
        assert moved(p, Kind.SNAPSHOT, "received") == moved(d, Kind.SNAPSHOT, "sent") == size
        for worker in (p, d):
            await worker.clean()


async def test_only_kv_that_the_prefill_lacks_comes_with_it(seeded: random.Random) -> None:
    """One that knows the prompt gets the answer's KV; one that does not gets all of it."""
    knows, new, d = prefill(), prefill("p1"), decode()
    async with running(knows, new, d), session(d) as router:
        prompt = random_prompt(seeded, 6 * PAGE, 6 * PAGE)
        _, answer = await router.start(prompt, greedy(COUNT), [knows])
        kept = (await answer.end()).state_tokens
        second = (*prompt, *answer.token_ids, *random_prompt(seeded, 5, 30))
        for worker, tokens in ((knows, kept - len(prompt)), (new, kept)):
            _, answer = await router.start(second, greedy(9), [worker])
            await assert_right(answer, second, kept)
            size = tokens * worker.engine.plan.page_layout.token_bytes
            headers = moved(worker, Kind.KV, "received") - size
            assert headers and not headers % HEADER_BYTES and headers <= 3 * HEADER_BYTES
            await worker.clean()
        await d.clean()


async def test_a_router_may_name_another_rank(seeded: random.Random) -> None:
    p, first, second_rank = prefill(), decode(), decode("d1")
    async with running(p, first, second_rank), session(first) as one, session(second_rank) as two:
        second, kept = await first_turn(one, p, seeded)
        at = common_pb2.StateAt(worker=first.identity, tokens=kept)
        _, answer = await two.start(second, greedy(9), [p], state_at=at)
        await assert_right(answer, second, kept)
        assert fetches(p, Outcome.FETCHED) == 1
        for worker in (p, first, second_rank):
            await worker.clean()


async def test_an_eager_rank_gives_it_back_before_anyone_asks(seeded: random.Random) -> None:
    """And is not needed any more when the next turn goes elsewhere."""
    p, d, other = (
        prefill(returns=StateReturn.EAGER),
        decode(returns=StateReturn.EAGER),
        decode("d1"),
    )
    async with running(p, d, other), session(other) as router:
        async with session(d) as gone:
            second, kept = await first_turn(gone, p, seeded)
            await until(lambda: fetches(p, Outcome.FETCHED) == 1)
            await p.clean()
            await d.clean()
        await d.stop()
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept)
        await other.clean()


@pytest.mark.parametrize(("rate", "outcome"), [(1e12, Outcome.FETCHED), (1e-3, Outcome.COMPUTED)])
async def test_auto_fetches_where_that_is_sooner_than_computing(
    seeded: random.Random, rate: float, outcome: Outcome
) -> None:
    p, d = prefill(returns=StateReturn.AUTO), decode(returns=StateReturn.AUTO)
    async with running(p, d), session(d) as router:
        for _ in range(2):  # the engine knows how fast it computes
            second, kept = await first_turn(router, p, seeded)
        for _ in range(3):
            p.service._prefixes.fetcher._cost.took(1 << 20, (1 << 20) / rate)
        _, answer = await router.start(second, greedy(9), [p])
        finished = await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert {each: fetches(p, each) for each in Outcome if fetches(p, each)} == {outcome: 1}
        assert (finished.usage.cached_tokens == kept) is (outcome is Outcome.FETCHED)
        for worker in (p, d):
            await worker.clean()


async def test_auto_fetches_what_it_knows_nothing_of(seeded: random.Random) -> None:
    p, d = prefill(returns=StateReturn.AUTO), decode(returns=StateReturn.AUTO)
    async with running(p, d), session(d) as router:
        for count in (1, 2):  # the first is not measured: it connects
            second, kept = await first_turn(router, p, seeded)
            _, answer = await router.start(second, greedy(9), [p])
            await assert_right(answer, second, kept)
            assert fetches(p, Outcome.FETCHED) == count
            assert (p.service._prefixes.fetcher._cost.bytes_per_s > 0) is (count == 2)


async def test_off_means_that_nothing_goes_back(seeded: random.Random) -> None:
    p, d = prefill(returns=StateReturn.OFF), decode(returns=StateReturn.OFF)
    async with running(p, d), session(d) as router:
        second, _ = await first_turn(router, p, seeded)
        _, answer = await router.start(second, greedy(9), [p])
        own = (len(second) - 1) // GRID * GRID
        assert (await answer.end()).usage.cached_tokens < own
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert moved(p, Kind.SNAPSHOT, "received") == 0
        assert not any(fetches(p, outcome) for outcome in Outcome)


async def _evicted(d: TestWorker) -> None:
    assert await d.context.port.call(Engine.flush_cache)


async def _dead(d: TestWorker) -> None:
    await d.stop()


async def _silent(d: TestWorker) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    d.service._prefixes._holder._write_all = hang


async def _failing(d: TestWorker) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("the source has a fault")

    d.service._prefixes._holder._write_all = fail


async def _untrue(d: TestWorker) -> None:
    """Says that it has sent what it has not."""
    write_all = PrefixHolder._write_all

    async def less(holder: Any, writing: Any, loan: Any, kv_from: int, limit: int) -> Any:
        sent = await write_all(holder, writing, loan, kv_from + PAGE, limit)
        return sent.plus(Kind.KV, PAGE)

    d.service._prefixes._holder._write_all = less.__get__(d.service._prefixes._holder)


@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        (_evicted, Outcome.ABSENT),
        (_dead, Outcome.FAILED),
        (_silent, Outcome.FAILED),
        (_failing, Outcome.FAILED),
        (_untrue, Outcome.FAILED),
    ],
)
async def test_what_cannot_be_had_is_computed(
    seeded: random.Random, trouble: Callable[[TestWorker], Any], outcome: Outcome
) -> None:
    p, d, other = prefill(), decode(), decode("d1")
    async with running(p, d, other), session(other) as router:
        if trouble is _silent:
            p.service._prefixes.fetcher._deadline_s = 0.5
        async with session(d) as first:
            second, kept = await first_turn(first, p, seeded)
            await d.clean()
        await p.clean()
        await trouble(d)
        at = common_pb2.StateAt(worker=d.identity, tokens=kept)
        _, answer = await router.start(second, greedy(9), [p], state_at=at)
        finished = await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert 0 < finished.usage.cached_tokens < kept, "its own prompt's snapshot, no more"
        assert fetches(p, outcome) == 1
        await p.clean()
        await other.clean()
        if trouble is not _dead:
            await d.clean()


async def test_a_corrupted_prefix_is_computed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, d = prefill(), decode()
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        await p.clean()
        parts_of = frames.parts_of_segment
        corrupted: list[bool] = []

        def corrupt_once(*args: Any) -> list[bytes]:
            message = b"".join(parts_of(*args))
            if len(message) > HEADER_BYTES + 8 and not corrupted:
                corrupted.append(True)
                message = message[:-1] + bytes([message[-1] ^ 1])
            return [message]

        monkeypatch.setattr(frames, "parts_of_segment", corrupt_once)
        _, answer = await router.start(second, greedy(9), [p])
        assert (await answer.end()).usage.cached_tokens < kept
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert corrupted and fetches(p, Outcome.FAILED) == 1
        for worker in (p, d):
            await worker.clean()


async def test_what_is_left_of_a_prefix_is_taken(seeded: random.Random) -> None:
    """The rank has lost the deepest snapshot, but not the one before: it says so."""
    p, d = prefill(), decode()
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)

        def lose_the_deepest(engine: Engine) -> None:
            cache = engine._pools.cache
            node = max(cache._snapshots, key=lambda node: node.depth)
            assert node.depth == kept
            for _ in range(len(cache._snapshots)):  # make it the least recently used
                cache._snapshots.move_to_end(next(n for n in cache._snapshots if n is not node))
            cache.evict_snapshots(1)

        await d.context.port.call(lose_the_deepest)
        _, answer = await router.start(second, greedy(9), [p])
        await assert_right(answer, second, kept - GRID)
        assert fetches(p, Outcome.FETCHED) == 1
        for worker in (p, d):
            await worker.clean()


async def test_a_prefill_without_room_computes(seeded: random.Random) -> None:
    p, d = prefill(tickets=1), decode()
    async with running(p, d), session(d) as router:
        second, kept = await first_turn(router, p, seeded)
        hog = await p.context.port.call(lambda engine: engine.reserve("hog", 8))
        assert hog is not None
        _, answer = await router.start(second, greedy(9), [p])
        assert (await answer.end()).usage.cached_tokens < kept
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        assert fetches(p, Outcome.NO_ROOM) == 1
        await p.context.port.call(lambda engine: engine.reservations.abandon(hog))
        await p.clean()


async def test_a_request_that_is_cancelled_while_its_state_comes_leaves_nothing(
    seeded: random.Random,
) -> None:
    p, d, cancelled = prefill(), decode(), asyncio.Event()

    async def fail_late(*_: Any) -> None:
        await cancelled.wait()
        raise RuntimeError("the source has a fault")

    async with running(p, d), session(d) as router:
        second, _ = await first_turn(router, p, seeded)
        d.service._prefixes._holder._write_all = fail_late
        request_id, answer = await router.start(second, greedy(9), [p])
        await until(lambda: len(p.service._prefixes.fetcher._under_way) == 1)
        await router.cancel(request_id)
        assert (await answer.end()).reason == common_pb2.ABORT
        cancelled.set()
        await until(lambda: fetches(p, Outcome.FAILED) == 1)
        for worker in (p, d):
            await worker.clean()


async def test_a_worker_of_another_layout_gets_nothing(seeded: random.Random) -> None:
    p, d, other = prefill(), decode(page_size=16), decode("d1")
    async with running(p, d, other), session(other) as router:
        prompt = random_prompt(seeded, 30, 50)
        at = common_pb2.StateAt(worker=d.identity, tokens=GRID)
        _, answer = await router.start(prompt, greedy(9), [p], state_at=at)
        await assert_right(answer, prompt, 0)
        assert fetches(p, Outcome.FAILED) == 1
        await p.clean()


async def test_a_prompts_last_snapshot_follows_it_and_is_counted_apart(
    seeded: random.Random,
) -> None:
    p, d = prefill(), decode(snapshots=SendSnapshots.LAST, returns=StateReturn.OFF)
    async with running(p, d), session(d) as router:
        # Past the grid: a prompt that ends on it could not use its last snapshot.
        prompt = random_prompt(seeded, 3 * GRID + 1, 60)
        depth = 3 * GRID
        _, answer = await router.start(prompt, greedy(3), [p])
        await assert_three(answer, prompt)
        await until(lambda: fetches(d, Outcome.FETCHED) == 1)
        await d.clean()
        await p.clean()
        whole = SaltedPrefix(prompt)
        there = await d.context.port.call(lambda engine: engine.prefixes.state_tokens(whole))
        assert there == depth
        size = d.engine.plan.slot_layout.state_bytes + HEADER_BYTES
        assert moved(d, Kind.SNAPSHOT, "received") == moved(d, Kind.STATE, "received") == size
        (alone,) = await d.context.port.call(lambda engine: engine.generate([prompt], greedy(9)))
        assert list(alone.token_ids) == expected_tokens(HashModel(), prompt, 9)
        assert alone.finished.usage.cached_tokens == depth


async def assert_three(answer: Answer, prompt: tuple[int, ...]) -> None:
    await answer.end()
    assert answer.token_ids == expected_tokens(HashModel(), prompt, 3)


async def test_a_hint_that_makes_no_sense_costs_nothing(seeded: random.Random) -> None:
    """More tokens than there are, or a depth inside of a page."""
    p, d, other = prefill(), decode(), decode("d1")
    async with running(p, d, other), session(d) as first, session(other) as router:
        second, kept = await first_turn(first, p, seeded)
        for tokens in (kept - 3, 10_000, 1):
            at = common_pb2.StateAt(worker=d.identity, tokens=tokens)
            prompt = (*second, *random_prompt(seeded, 1, 9))
            _, answer = await router.start(prompt, greedy(9), [p], state_at=at)
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        for worker in (p, d, other):
            await worker.clean()
