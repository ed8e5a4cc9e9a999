"""Copies of the host's tier: when they stop, what waits for them, and what they may take."""

import logging
import random
import threading

import pytest
import torch
from engine.engines import assert_clean, finish_of, greedy, random_prompt, run, tokens_of
from engine.hash_model import HashModel, expected_tokens
from engine.host_tiers import (
    DEADLINE,
    ask,
    copies_wait,
    forget_device,
    saved,
    tier_of,
    tiered,
    without_tier,
)

from baton.core.errors import InvariantError
from baton.core.finish import Usage
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import token_key
from baton.engine.memory.host_bytes import HostBytes
from baton.engine.request.events import Scheduled
from baton.engine.request.request import RequestSpec
from baton.engine.tiers import block_copier, copy_thread
from baton.engine.tiers.block_copier import BlockCopier, Blocks
from baton.engine.tiers.loads import MOST_LOADS

PIECE = 64
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


class Gate:
    """Holds each piece of a copy back until it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Semaphore(0)
        self.through = threading.Semaphore(0)
        put = HostBytes.put

        def waits(storage: HostBytes, start: int, payload: memoryview) -> None:
            self.reached.release()
            assert self.through.acquire(timeout=DEADLINE)
            put(storage, start, payload)

        monkeypatch.setattr(HostBytes, "put", waits)


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> tuple[Blocks, Blocks]:
    """Two slots and two pages of eight pieces each, at both ends of a copy."""
    monkeypatch.setattr(block_copier, "PIECE_BYTES", PIECE)
    sources = [torch.randint(1, 256, (2, 8 * PIECE), dtype=torch.uint8) for _ in range(2)]
    slots, pages = (Blocks(source, torch.zeros_like(source)) for source in sources)
    return slots, pages


def test_a_copy_that_is_told_to_stop_ends_with_the_piece_under_way(
    kinds: tuple[Blocks, Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots, pages = kinds
    gate = Gate(monkeypatch)
    copier, ended = BlockCopier("copies", kinds, CPU), threading.Event()
    copy = copier.start([(0, 1)], [(1, 0)], ended.set)
    assert copy.nbytes == 16 * PIECE
    for _ in range(3):
        gate.through.release()
    for _ in range(4):
        assert gate.reached.acquire(timeout=DEADLINE)
    copy.stop()
    gate.through.release()
    assert copy.done.result(DEADLINE) is None and ended.wait(DEADLINE)
    assert slots.target[1, : 4 * PIECE].equal(slots.source[0, : 4 * PIECE])
    assert not slots.target[1, 4 * PIECE :].any() and not pages.target.any()
    assert not gate.reached.acquire(blocking=False), "no piece was begun after that"
    gate.through.release(16)
    again = copier.start([(0, 1)], [(1, 0)], lambda: None)
    assert again.done.result(DEADLINE) is not None, "the next copy does not stop"
    assert slots.target[1].equal(slots.source[0]) and pages.target[0].equal(pages.source[1])
    copier.close()


def test_closing_does_not_wait_for_ever(
    kinds: tuple[Blocks, Blocks],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate(monkeypatch)
    monkeypatch.setattr(copy_thread, "_CLOSE_S", 0.01)
    copier = BlockCopier("copies", kinds, CPU)
    copy = copier.start([(0, 1)], [], lambda: None)
    assert gate.reached.acquire(timeout=DEADLINE)
    with caplog.at_level(logging.WARNING):
        copier.close()
    assert "copies on the thread copies have not ended in 0.01 s" in caplog.text
    gate.through.release(8)
    assert copy.done.result(DEADLINE) is not None
    with pytest.raises(RuntimeError, match="after shutdown"):
        raise copier.start([(0, 1)], [], lambda: None).done.exception(DEADLINE) or AssertionError()


def test_a_prefix_waits_while_all_of_the_host_is_lent(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has one slot, and it is being read. One that would never fit does not wait."""
    slot = tiered().plan.slot_layout.slot_bytes
    page = tiered().plan.page_layout.page_bytes
    engine = tiered(host_cache_state_bytes=slot, host_cache_bytes=8 * page)
    tier = tier_of(engine)
    read, kept, long = (random_prompt(seeded, size, size + 4) for size in (50, 50, 90))
    ask(engine, read)
    forget_device(saved(engine))
    with without_tier(engine):
        ask(engine, kept, 1)
        ask(engine, long, 1)
    gate = copies_wait(monkeypatch)
    engine.submit(RequestSpec("r", read, greedy(4)))
    engine.plan_step()
    assert tier.tickets == 1 and list(tier.host.loans)
    cache = engine.prefixes.pools.cache
    tier.kept(cache.match(token_key(long), len(long)).node, last=True)
    assert not tier.saving, "it has more pages than the host"
    tier.kept(cache.match(token_key(kept), len(kept)).node, last=True)
    assert tier.saving and not list(tier.host.reservations), "it waits"
    gate.set()
    assert tokens_of(run(engine), "r") == expected_tokens(HashModel(), read, 4)
    forget_device(saved(engine))
    assert ask(engine, kept) == 48
    engine.close()


def test_prefixes_that_come_back_take_no_ticket_of_a_hand_off(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered(tickets=2)
    prompt = random_prompt(seeded, 50, 54)
    ask(engine, prompt)
    forget_device(saved(engine))
    gate = copies_wait(monkeypatch)
    engine.submit(RequestSpec("r", prompt, greedy(4)))
    engine.plan_step()
    assert tier_of(engine).tickets == 1
    found = [engine.reserve(f"t{number}", 20) for number in range(3)]
    assert [each is not None for each in found] == [True, True, False]
    gate.set()
    assert tokens_of(run(engine), "r") == expected_tokens(HashModel(), prompt, 4)
    assert engine.status().slots[Owner.TICKET] == 2
    for each in found[:2]:
        assert each is not None
        engine.reservations.abandon(each)
    assert_clean(engine)
    engine.close()


def test_only_so_many_prefixes_come_back_at_once(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered(max_running=8, cached_snapshots=16)
    prompts = [random_prompt(seeded, 50, 54) for _ in range(8)]
    for prompt in prompts:
        ask(engine, prompt, 1)
        saved(engine)
    forget_device(engine)
    gate = copies_wait(monkeypatch)
    for number, prompt in enumerate(prompts):
        engine.submit(RequestSpec(f"r{number}", prompt, greedy(4)))
    engine.plan_step()
    assert tier_of(engine).tickets == MOST_LOADS == 4
    assert_clean(engine)
    gate.set()
    events = run(engine)
    for number, prompt in enumerate(prompts):
        assert tokens_of(events, f"r{number}") == expected_tokens(HashModel(), prompt, 4)
    assert engine.counters.host_hit_tokens == 8 * 48
    engine.close()


def test_a_request_is_told_how_much_the_host_spared_it(seeded: random.Random) -> None:
    engine = tiered()
    prompt = random_prompt(seeded, 50, 54)

    def told(name: str) -> tuple[Scheduled, Usage]:
        engine.submit(RequestSpec(name, prompt, greedy(4)))
        events = run(engine)
        (scheduled,) = [event for event in events if isinstance(event, Scheduled)]
        return scheduled, finish_of(events, name).usage

    for name, cached, host in (("cold", 0, 0), ("device", 48, 0), ("host", 48, 48)):
        if name == "host":
            forget_device(saved(engine))
        scheduled, usage = told(name)
        assert (scheduled.cached_tokens, scheduled.cached_host) == (cached, host)
        assert (usage.cached_tokens, usage.cached_host_tokens) == (cached, host)
    engine.close()


def test_the_audit_looks_at_the_hosts_owners(seeded: random.Random) -> None:
    engine = tiered()
    ask(engine, random_prompt(seeded, 50, 54))
    tier = tier_of(saved(engine))
    page = tier.host.pools.pages.take(Owner.TICKET)
    assert page is not None
    (finding,) = engine.audit()
    assert finding.startswith("the host's tier: ") and f"[{page}] are marked ticket" in finding
    tier.host.pools.pages.free(page, Owner.TICKET)
    (node,) = [each for each in tier.host.pools.cache.tree if each.depth == 48]
    tier.host.pools.cache.lock(node)
    assert all("the host's tier: " in each and "locks" in each for each in engine.audit())
    assert engine.audit()
    tier.host.pools.cache.unlock(node)
    assert_clean(engine)
    engine.close()


@pytest.mark.parametrize("what", ["page", "slot"])
def test_the_canary_looks_at_what_the_host_lends(seeded: random.Random, what: str) -> None:
    """Two prefixes of the host exchange a page, or their snapshots."""
    engine = tiered()
    prompts = [random_prompt(seeded, 50, 54) for _ in range(2)]
    for prompt in prompts:
        ask(engine, prompt)
        saved(engine)
    forget_device(engine)
    tree = tier_of(engine).host.pools.cache.tree
    one, other = (each for each in tree if each.depth == 48)
    if what == "page":
        one.pages[1], other.pages[1] = other.pages[1], one.pages[1]
    else:
        one.snapshot, other.snapshot = other.snapshot, one.snapshot
    assert_clean(engine)
    engine.submit(RequestSpec("r", prompts[0], greedy(4)))
    with pytest.raises(InvariantError, match=f"a loan read {what} .* holds"):
        engine.plan_step()
    engine.close()
