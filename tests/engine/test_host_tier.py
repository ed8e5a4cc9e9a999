"""Prefixes that outlive the device's pools in the host's memory, over the hash model: whatever is
copied to a wrong place, too late or not at all changes its tokens."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine.engines import (
    PAGE,
    assert_clean,
    finish_of,
    greedy,
    make_engine,
    random_prompt,
    run,
    tokens_of,
)
from engine.hash_model import HashModel, expected_tokens, hash_config
from engine.host_tiers import (
    MIB,
    ask,
    assert_every_layer_is_there,
    copies_wait,
    forget_device,
    saved,
    tier_of,
    tiered,
    without_tier,
)
from engine.test_races import jittered
from kit.polling import wait_until

from baton.core.cache_salt import SALT_BYTES
from baton.core.errors import ConfigError
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.loop import EngineLoop
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.request.events import Event, RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.step.batch import Batch
from baton.engine.stream.forward_stream import ThreadStream
from baton.engine.tiers.block_copier import BlockCopier, block_runs
from baton.engine.tiers.copy_thread import Copy

GRID = 16
DEADLINE = 60.0
ONE, TWO = b"1" * SALT_BYTES, b"2" * SALT_BYTES
Pairs = Sequence[tuple[int, int]]


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page", [4, 8, 16, 32])
def test_every_source_gives_the_same_tokens(
    seeded: random.Random, page: int, overlap: bool
) -> None:
    """Cold, from the device, from the host, from the device once more. The grid is 16, and answers
    end before its next depth: a newer snapshot would be copied in place of the prompt's."""
    engine = tiered(page_size=page, overlap=overlap)
    prompt = random_prompt(seeded, 65, 71)
    depth = 64
    assert ask(engine, prompt) == 0
    assert ask(engine, prompt) == depth
    forget_device(saved(engine))
    assert ask(engine, prompt) == depth
    assert engine.counters.host_hit_tokens == depth
    assert ask(engine, prompt) == depth
    assert engine.counters.host_hit_tokens == depth, "the last one was the device's"
    engine.close()


def test_a_conversation_goes_on_from_its_answers_state(seeded: random.Random) -> None:
    engine = tiered()
    text = random_prompt(seeded, 50, 60)
    for _ in range(3):
        (output,) = engine.generate([text], greedy(30))
        assert list(output.token_ids) == expected_tokens(HashModel(), text, 30)
        forget_device(saved(engine))
        told = (*text, *output.token_ids)
        text = (*told, *random_prompt(seeded, 5, 9))
        cached = ask(engine, text, 1)
        assert cached == (len(told) - 1) // GRID * GRID
        forget_device(saved(engine))
    engine.close()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The slots and pages of each copy that was begun, as two numbers."""
    begun: list[tuple[int, int]] = []
    start = BlockCopier.start

    def noted(self: BlockCopier, slots: Pairs, pages: Pairs, after: Callable[[], None]) -> Copy:
        begun.append((len(slots), len(pages)))
        return start(self, slots, pages, after)

    monkeypatch.setattr(BlockCopier, "start", noted)
    return begun


def test_the_first_pages_are_the_devices_and_the_rest_is_the_hosts(
    seeded: random.Random, copies: list[tuple[int, int]]
) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 97, 103)
    ask(engine, prompt)
    forget_device(saved(engine))
    with without_tier(engine):
        ask(engine, prompt[:33], 1)
    copies.clear()
    assert ask(engine, prompt) == 96
    assert copies[0] == (1, 64 // PAGE)
    assert engine.counters.host_hit_tokens == 64
    assert ask(engine, prompt) == 96
    engine.close()


def test_all_pages_are_the_devices_and_the_state_is_the_hosts(
    seeded: random.Random, copies: list[tuple[int, int]]
) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 97, 97)
    ask(engine, prompt, 1)
    saved(engine)
    cache = engine.prefixes.pools.cache
    node, _ = cache.hold_kv(token_key(prompt[:96]))
    cache.evict_snapshots(engine.plan.slots)
    cache.unlock_pages(node)
    assert node.snapshot is None and node.attached
    copies.clear()
    assert ask(engine, (*prompt, *random_prompt(seeded, 20, 30))) == 96
    assert copies[0] == (1, 0)
    assert engine.counters.host_hit_tokens == 96
    engine.close()


def test_blocks_that_lie_behind_one_another_at_both_ends_are_copied_together(
    seeded: random.Random,
) -> None:
    assert list(block_runs([(7, 4), (3, 9), (6, 3), (5, 2)])) == [(3, 9, 1), (5, 2, 3)]
    assert list(block_runs([(1, 5), (2, 4)])) == [(1, 5, 1), (2, 4, 1)]
    for _ in range(50):
        count = seeded.randrange(20)
        pairs = list(zip(*(seeded.sample(range(25), count) for _ in range(2)), strict=True))
        found = [
            (source + block, target + block)
            for source, target, blocks in block_runs(pairs)
            for block in range(blocks)
        ]
        assert found == sorted(pairs)


def test_every_layer_of_every_kind_is_copied(seeded: random.Random) -> None:
    engine = tiered(HashModel(hash_config(layers=3)))
    prompt = random_prompt(seeded, 50, 54)
    engine.generate([prompt], greedy(1))
    layers = assert_every_layer_is_there(saved(engine), prompt)
    assert layers == ({0, 1, 2}, {0, 1, 2})
    engine.close()


def test_a_copy_back_that_fails_leaves_no_node(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    forget_device(saved(engine))
    put, target = HostBytes.put, engine.pages.storage.data_ptr()

    def fails(self: HostBytes, start: int, payload: memoryview) -> None:
        if self.address == target and start:
            raise OSError("the memory is gone")
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", fails)
    assert ask(engine, prompt) == 0, "it is computed"
    assert engine.counters.host_failures == 1 and engine.counters.host_hit_tokens == 0
    assert engine.status().pages[Owner.TICKET] == engine.status().slots[Owner.TICKET] == 0
    monkeypatch.undo()
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)
    forget_device(saved(engine))
    assert ask(engine, prompt) == 48, "the host's copy is as good as before"
    engine.close()


def test_a_copy_into_the_host_that_fails_is_no_hit(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered()
    tier, put = tier_of(engine), HostBytes.put

    def fails(self: HostBytes, start: int, payload: memoryview) -> None:
        if self.address == tier.memory.pages.data_ptr():
            raise OSError("the memory is gone")
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", fails)
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    forget_device(saved(engine))
    assert engine.counters.host_failures and not engine.counters.host_snapshots_saved
    assert ask(engine, prompt) == 0
    assert_clean(engine)
    engine.close()


def test_memory_that_is_being_copied_is_given_back_before_a_request_waits(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy stands still until it is told to stop: a request takes all of the device's pages
    meanwhile."""
    engine = tiered(pages=24, max_running=1, cached_snapshots=1)
    put = HostBytes.put
    monkeypatch.setattr("baton.engine.tiers.block_copier.PIECE_BYTES", 8)
    stopped = threading.Event()
    stop = Copy.stop

    def told_to_stop(self: Copy) -> None:
        stop(self)
        stopped.set()

    monkeypatch.setattr(Copy, "stop", told_to_stop)

    def stands_still(self: HostBytes, start: int, payload: memoryview) -> None:
        assert stopped.wait(DEADLINE)
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", stands_still)
    ask(engine, random_prompt(seeded, 50, 54), 1)
    assert tier_of(engine).saving and list(engine.prefixes.loans)
    assert ask(engine, random_prompt(seeded, 180, 180), 4) == 0
    assert engine.counters.host_recalls == 1 and stopped.is_set()
    assert engine.counters.preemptions == 0
    assert_clean(engine)
    engine.close()


def test_a_newer_snapshot_of_the_same_text_takes_the_place_of_one_that_waits(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, copies: list[tuple[int, int]]
) -> None:
    engine = tiered()
    gate = copies_wait(monkeypatch)
    prompt = random_prompt(seeded, 97, 97)
    ask(engine, prompt, 1)  # six chunks, each with a snapshot
    assert copies == [(1, 16 // PAGE)], "the first is under way"
    gate.set()
    saved(engine)
    assert copies == [(1, 16 // PAGE), (1, 80 // PAGE)], "of the others, the newest alone"
    engine.close()


def test_a_prefix_that_comes_back_for_nobody_is_work_to_be_ended(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is a ticket's until then, and whoever waits for that would wait for ever."""
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    forget_device(saved(engine))
    gate = copies_wait(monkeypatch)
    engine.submit(RequestSpec("r", prompt, greedy(4)))
    engine.plan_step()
    assert tier_of(engine).tickets
    engine.cancel("r", "changed its mind")
    assert engine.step() and engine.has_work
    gate.set()
    run(engine)
    assert not engine.status().pages[Owner.TICKET]
    assert ask(engine, prompt) == 48
    engine.close()


def test_what_was_given_up_is_copied_once_no_request_is_in_the_way(seeded: random.Random) -> None:
    engine = tiered()
    tier_of(engine).saves._paused_until = 1 << 30  # as behind a copy that was given up
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt, 1)
    assert engine.has_work, "its prefix waits"
    run(engine)
    forget_device(saved(engine))
    assert ask(engine, prompt) == 48
    engine.close()


def test_prefixes_that_come_back_for_a_long_queue_do_not_push_one_another_out(
    seeded: random.Random,
) -> None:
    engine = tiered(pages=40, max_running=8)
    prompts = [random_prompt(seeded, 100, 110) for _ in range(8)]
    for prompt in prompts:
        ask(engine, prompt, 1)
        saved(engine)
    forget_device(engine)
    outputs = engine.generate(prompts, greedy(60))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert list(output.token_ids) == expected_tokens(HashModel(), prompt, 60)
    assert [output.finished.usage.cached_tokens for output in outputs] == [96] * 8
    engine.close()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_prefix_that_is_evicted_before_its_request_runs_comes_again(
    seeded: random.Random, times: int
) -> None:
    """Twice; a request does not wait for ever while others push its prefix out."""
    engine = tiered()
    prompt = random_prompt(seeded, 100, 110)
    ask(engine, prompt, 1)
    saved(engine)
    forget_device(engine)
    plan, left = engine._scheduler.plan, times

    def evicts_first(outbox: list[Event]) -> Batch | None:
        nonlocal left
        request = engine._scheduler.waiting.first
        if left and request is not None and request.promotion and request.promotion.copied:
            left -= 1
            forget_device(engine)
        return plan(outbox)

    engine._scheduler.plan = evicts_first  # type: ignore[method-assign]
    assert ask(engine, prompt) == (96 if times <= 2 else 0)
    assert not left
    engine.close()


def test_the_host_evicts_by_itself(seeded: random.Random) -> None:
    """Its pools are smaller than what is copied there; what is left is right."""
    engine = tiered()
    slot, page = engine.plan.slot_layout.slot_bytes, engine.plan.page_layout.page_bytes
    engine.close()
    engine = tiered(host_cache_state_bytes=3 * slot, host_cache_bytes=20 * page)
    prompts = [random_prompt(seeded, 50, 54) for _ in range(6)]
    for prompt in prompts:
        ask(engine, prompt, 1)
        saved(engine)
    slots, pages = tier_of(engine).counts()
    assert slots[Owner.CACHE] == 3 and slots[Owner.FREE] == 0 and pages[Owner.CACHE] <= 20
    forget_device(engine)
    assert ask(engine, prompts[-1], 1) >= 48
    assert ask(engine, prompts[0], 1) == 0, "too old"
    engine.close()


def test_flushing_the_cache_flushes_the_host_too(seeded: random.Random) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    assert tier_of(saved(engine)).counts()[1][Owner.CACHE]
    assert engine.flush_cache()
    slots, pages = tier_of(engine).counts()
    assert slots[Owner.CACHE] == pages[Owner.CACHE] == 0
    assert ask(engine, prompt) == 0
    engine.close()


def test_salts_are_kept_apart(seeded: random.Random) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)

    def asked(name: str, salt: bytes) -> int:
        engine.submit(RequestSpec(name, prompt, greedy(3), cache_salt=salt))
        events = run(engine)
        assert tokens_of(events, name) == expected_tokens(HashModel(), prompt, 3)
        return finish_of(events, name).usage.cached_tokens

    assert asked("a", ONE) == 0
    forget_device(saved(engine))
    assert asked("b", TWO) == 0
    assert asked("c", ONE) == 48
    engine.close()


def test_an_idle_loop_copies_behind_and_wakes_for_a_copy_back(seeded: random.Random) -> None:
    engine = tiered()
    done: list[RequestFinished] = []

    def noted(events: list[Event]) -> None:
        done.extend(event for event in events if isinstance(event, RequestFinished))

    loop = EngineLoop(engine, noted, lambda error: None)
    loop.start()
    prompt = random_prompt(seeded, 50, 54)

    def ask_loop(name: str) -> int:
        loop.call(lambda engine: engine.submit(RequestSpec(name, prompt, greedy(3)))).result(
            DEADLINE
        )
        wait_until(lambda: any(each.request_id == name for each in done))
        return done[-1].usage.cached_tokens

    assert ask_loop("a") == 0
    wait_until(lambda: loop.call(lambda engine: not tier_of(engine).saving).result(DEADLINE))
    loop.call(forget_device).result(DEADLINE)
    assert ask_loop("b") == 48
    loop.stop(DEADLINE)
    assert_clean(engine)
    engine.close()


def test_a_prefix_that_is_sooner_computed_is_computed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    forget_device(saved(engine))
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: False)
    assert ask(engine, prompt) == 0
    engine.close()


@pytest.mark.parametrize("overlap", [False, True])
def test_random_conversations_with_tiny_pools(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    """Steps and copies start late and at random; the device evicts all the time, the host often.
    Every answer is the definition's, and every owner is right after every step."""
    put, jitter = HostBytes.put, random.Random(seeded.random())

    def late(self: HostBytes, start: int, payload: memoryview) -> None:
        time.sleep(jitter.choice((0.0, 0.0, 0.0, 0.001)))  # a late copy
        put(self, start, payload)

    monkeypatch.setattr(HostBytes, "put", late)
    engine = tiered(
        pages=36,
        chunk=24,
        cached_snapshots=3,
        overlap=overlap,
        stream=ThreadStream(jittered(seeded)) if overlap else None,
        host_cache_state_bytes=10 * 512,
        host_cache_bytes=80 * 512,
    )
    texts = [random_prompt(seeded, 20, 70) for _ in range(50)]
    turns = [
        turn
        for first in range(0, 50, 10)  # ten conversations at a time
        for turn in seeded.sample([(first + each % 10, each // 10) for each in range(30)], 30)
    ]
    waiting: dict[str, tuple[int, int]] = {}
    for place, (number, _) in enumerate(turns):
        name = f"c{number}-{place}"
        if any(other == number for other, _ in waiting.values()) or len(texts[number]) > 200:
            continue
        count = seeded.randint(1, 30)
        engine.submit(RequestSpec(name, texts[number], greedy(count)))
        waiting[name] = number, count
        if seeded.random() < 0.1:
            engine.cancel(name, "changed its mind")
            del waiting[name]
        if len(waiting) >= seeded.randint(1, 5) or place == len(turns) - 1:
            events = run(engine)
            for each, (text, asked) in waiting.items():
                told = tokens_of(events, each)
                assert told == expected_tokens(HashModel(), texts[text], asked)
                texts[text] = (*texts[text], *told, *random_prompt(seeded, 1, 12))
            waiting.clear()
    saved(engine)
    status = engine.status()
    print(engine.counters)
    for owner in (Owner.LIVE, Owner.TRACK, Owner.TRANSFER, Owner.TICKET):
        assert status.slots[owner] == status.pages[owner] == 0
        assert status.host_slots[owner] == status.host_pages[owner] == 0
    assert engine.counters.host_hit_tokens and engine.counters.host_snapshots_saved
    engine.close()


def test_without_its_options_nothing_is_allocated() -> None:
    engine = make_engine()
    assert engine.tier is None and engine.prefixes.pools.backup is None
    assert not any("host" in part for part in engine.memory_report)
    status = engine.status()
    assert status.host_slots == status.host_pages == {}


def test_the_plan_tells_of_the_hosts_memory() -> None:
    engine = tiered(host_cache_bytes=4 * MIB)
    page = engine.plan.page_layout.page_bytes
    assert engine.memory_report["host pages"].startswith(f"{4 * MIB // page + 1} of ")
    assert "host snapshots" in engine.memory_report
    assert engine.memory_report["host pages"].endswith("beside the budget")
    engine.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"host_cache_bytes": 0}, "the model has KV pages, and host_cache_gb is 0"),
        ({"host_cache_state_bytes": 0}, "has recurrent states, and host_cache_state_gb is 0"),
        ({"prefix_caching": False}, "prefix_caching is off"),
        ({"host_cache_bytes": 1}, "host_cache_gb has no room for one block"),
        ({"host_cache_bytes": 1 << 50}, "are free: lower host_cache_gb"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        tiered(None, **options)
