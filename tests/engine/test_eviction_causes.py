"""Causes of evictions: each eviction has one, and old ones fade."""

import random
from typing import Any

import pytest
from engine.engines import assert_clean, greedy, make_engine, random_prompt

from baton.engine.cache.eviction_causes import EvictionCauses, Shortages


@pytest.mark.parametrize(
    ("sizes", "short"),
    [({"pages": 400, "cached_snapshots": 1}, "slots"),
     ({"pages": 24, "cached_snapshots": 90}, "pages")],
)  # fmt: skip
def test_the_pool_that_is_too_small_causes_the_evictions(
    seeded: random.Random, sizes: dict[str, Any], short: str
) -> None:
    engine = make_engine(max_running=1, snapshots_per_prefill=1, **sizes)
    assert engine.status().shortages == Shortages()
    for _ in range(12):
        engine.generate([random_prompt(seeded, 40, 60)], greedy(4))
        assert_clean(engine)
    counted = {
        "slots": engine.counters.slot_shortage_bytes,
        "pages": engine.counters.page_shortage_bytes,
    }
    other = "pages" if short == "slots" else "slots"
    assert counted[short] > 0 and counted[other] == 0
    lately = engine.status().shortages
    assert getattr(lately, short) > 0 and getattr(lately, other) == 0


def test_every_evicted_byte_has_one_cause(seeded: random.Random) -> None:
    """Both pools are small, and tickets take ids too: the two causes sum up to what went."""
    engine = make_engine(pages=24, cached_snapshots=2, max_running=2, tickets=1)
    for _ in range(20):
        engine.generate([random_prompt(seeded, 20, 60)], greedy(4))
        reservation = engine.reserve("ticket", seeded.randint(8, 60))
        if reservation is not None:
            engine.reservations.abandon(reservation)
    counters = engine.counters
    evicted = (
        counters.snapshots_evicted * engine.plan.slot_layout.slot_bytes
        + counters.pages_evicted * engine.plan.page_layout.page_bytes
    )
    assert evicted > 0
    assert counters.slot_shortage_bytes + counters.page_shortage_bytes == evicted


def test_what_is_flushed_was_not_evicted_for_a_shortage(seeded: random.Random) -> None:
    engine = make_engine()
    engine.generate([random_prompt(seeded, 40, 60)], greedy(4))
    assert engine.flush_cache()
    assert engine.counters.pages_evicted > 0
    assert engine.status().shortages == Shortages()


def test_old_evictions_fade() -> None:
    causes = EvictionCauses(window_bytes=100)
    for _ in range(50):
        causes.add(slots=30)
    for _ in range(50):
        causes.add(pages=30)
        assert causes.lately.slots + causes.lately.pages < 100
    assert causes.lately.pages > 1e6 * causes.lately.slots
