"""Host tier and files of a replica of two ranks: whatever memory a prefix comes back from, the
parts of both ranks are there, and the answer has the bits of a cold prompt."""

from pathlib import Path
from typing import Any

import pytest
from engine.engines import assert_clean
from engine.file_tiers import files_of, paths_in, written
from engine.host_tiers import copies_wait, saved, tier_of
from engine.test_host_tier_families import DEPTH, GIB, asked
from engine.test_oracle import load
from oracle.reference import Oracle
from oracle.specs import SPECS

from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.engine import Engine
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.layout.token_key import token_key
from baton.engine.memory.rank_storage import RankStorage

RANKS = 2
NAME = "granite_moe_nope"
MEMORIES = {
    NAME: (1, 1),  # Mamba-2, attention and experts
    "mamba2_grouped": (0, 1),  # no attention: pages take no bytes
    "llama_tied": (1, 0),  # attention alone: no states
}
"""Checkpoints, one of each kind of memory, that two ranks can divide: do they have KV, and states?
"""


@pytest.fixture(autouse=True)
def copying_is_always_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing takes these models no time, so what is sooner would be left to chance."""
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)


def prompt_for(name: str) -> tuple[int, ...]:
    vocab = SPECS[name].config["vocab_size"]
    return tuple(3 + number * 37 % (vocab - 3) for number in range(DEPTH + 2))


def tiered(
    oracle: Oracle, place: Path, name: str = NAME, ranks: int = RANKS, **options: Any
) -> Engine:
    """Return an engine with a host's tier and files in `place`, as one that was started again."""
    pages, states = MEMORIES[name]
    return load(
        oracle.checkpoint(name),
        tp=ranks,
        host_cache_bytes=pages * GIB // 64,
        host_cache_state_bytes=states * GIB // 64,
        file_cache=place / "files",
        file_cache_bytes=GIB,
        state_key_file=place / "key",
        **options,
    )


def forget(engine: Engine, host: bool = False) -> None:
    """Evict all from the ranks' caches, and from the host's if asked to, and overwrite it."""
    pools = engine.prefixes.pools
    pools.cache.flush()
    assert not pools.cache.nodes
    overwritten = [*engine._runner.storages]
    if host:
        tier = tier_of(engine)
        tier.host.pools.cache.flush()
        assert not tier.host.pools.cache.nodes
        overwritten.append(RankStorage(tier.memory.states, tier.memory.pages))
    for states, pages in overwritten:
        states.random_(0, 256)
        pages.random_(0, 256)


def assert_every_part_is_there(engine: Engine, prompt: tuple[int, ...]) -> None:
    """Compare what the host holds of a prompt with the part of each rank, byte for byte."""
    tier, stateful = tier_of(engine), engine.prefixes.pools.stateful
    here, there = (share.lend(SaltedPrefix(prompt)) for share in (engine.prefixes, tier.host))
    assert here is not None and there is not None and here.state.tokens == there.state.tokens
    storages = engine._runner.storages
    assert len(storages) == tier.memory.ranks == RANKS
    for rank, (states, pages) in enumerate(storages):
        copies = tier.memory.of_rank(rank)
        if stateful:
            assert states[here.state.slot].any()
            assert states[here.state.slot].equal(copies.states[there.state.slot]), rank
        for page, copied in zip(here.state.pages, there.state.pages, strict=True):
            assert pages[page].any() or not pages.shape[1]
            assert pages[page].equal(copies.pages[copied]), rank
    engine.prefixes.give_back(here)
    tier.host.give_back(there)
    assert_clean(engine)


@pytest.mark.parametrize("name", MEMORIES)
def test_every_source_gives_the_bits_of_a_cold_prompt(
    oracle: Oracle, tmp_path: Path, name: str
) -> None:
    prompt = prompt_for(name)
    engine = tiered(oracle, tmp_path, name)
    expected, cached = asked(engine, prompt)
    assert not cached and asked(engine, prompt) == (expected, DEPTH), "the device's"
    assert_every_part_is_there(saved(engine), prompt)
    forget(engine)
    assert asked(engine, prompt) == (expected, DEPTH), "the host's"
    assert engine.counters.host_hit_tokens == DEPTH
    written(engine).close()
    assert len(paths_in(tmp_path)) == 1
    engine = tiered(oracle, tmp_path, name)
    assert asked(engine, prompt) == (expected, DEPTH), "the file's"
    assert engine.counters.file_hit_tokens == DEPTH
    assert_every_part_is_there(saved(engine), prompt)
    assert asked(engine, prompt) == (expected, DEPTH), "the device's, after the file's"
    forget(written(engine), host=True)
    asked(engine, prompt[: DEPTH // 2 + 1])
    assert asked(engine, prompt) == (expected, DEPTH), "some pages the device's, the rest a file's"
    assert not engine.counters.file_failures and not engine.counters.host_failures
    engine.close()


def test_another_number_of_ranks_finds_no_files(oracle: Oracle, tmp_path: Path) -> None:
    prompt = prompt_for(NAME)
    engine = tiered(oracle, tmp_path)
    asked(engine, prompt)
    written(engine).close()
    engine = tiered(oracle, tmp_path, ranks=1)
    assert asked(engine, prompt)[1] == 0 and engine.counters.file_misses == 1
    engine.close()


def test_a_copy_that_was_given_up_leaves_nothing(
    oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had moved a part of one rank."""
    prompt = prompt_for(NAME)
    engine = tiered(oracle, tmp_path)
    gate = copies_wait(monkeypatch)
    asked(engine, prompt)
    assert tier_of(engine).saving
    current = tier_of(engine).saves._current
    assert current is not None and current.copy is not None
    current.copy.stop()
    gate.set()
    tier_of(engine).saves.recall()
    key = token_key(prompt)
    assert not tier_of(engine).host.pools.cache.match(key, DEPTH).depth
    assert_clean(engine)
    saved(engine)
    assert not files_of(engine).reading
    engine.close()
