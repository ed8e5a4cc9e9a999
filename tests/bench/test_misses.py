"""The causes by which workers miss what one infinite cache would serve."""

from array import array

import pytest

from baton.bench.prefix.misses import Missed, Misses
from baton.engine.cache.snapshot_log import EVICTED
from baton.text.prefix_digest import PrefixDigest

GRID = 4


def prompt(tokens: int, other: int = 0) -> bytes:
    """Return a prompt of `tokens` tokens, the last `other` of which no other prompt has."""
    ids = [*range(tokens - other), *(1000 + tokens + at for at in range(other))]
    return array("I", ids).tobytes()


def digest(tokens: int) -> int:
    return PrefixDigest().add(prompt(tokens))


def begun(misses: Misses, key: bytes, hit: int) -> None:
    misses.begun(misses.arrived(key), hit)


@pytest.fixture
def misses() -> Misses:
    """Worker 0 has computed 20 tokens and left the state after 12 of them."""
    misses = Misses(GRID)
    begun(misses, prompt(20), 0)
    assert misses.missed == Missed(), "nobody could have had it"
    misses.changed(0, {digest(12): 12})
    return misses


def test_what_is_served_is_not_missed(misses: Misses) -> None:
    begun(misses, prompt(14, other=1), 12)
    assert misses.missed == Missed()


def test_the_last_token_is_not_missed(misses: Misses) -> None:
    begun(misses, prompt(12), 8)
    assert misses.missed == Missed()


def test_tokens_behind_the_last_snapshot_were_computed_without_one(misses: Misses) -> None:
    begun(misses, prompt(19, other=2), 12)
    assert misses.missed == Missed(no_snapshot=4)


def test_a_state_on_another_worker_is_elsewhere(misses: Misses) -> None:
    misses.changed(1, {digest(4): 4})
    begun(misses, prompt(14, other=1), 4)
    assert misses.missed == Missed(elsewhere=8)


def test_a_state_that_all_have_evicted_is_evicted(misses: Misses) -> None:
    misses.changed(1, {digest(12): 12})
    misses.changed(0, {digest(12): EVICTED})
    begun(misses, prompt(14, other=1), 0)
    assert misses.missed == Missed(elsewhere=12)
    misses.changed(1, {digest(12): EVICTED})
    begun(misses, prompt(15, other=2), 0)
    assert misses.missed == Missed(elsewhere=12, evicted=12)


def test_a_prompt_before_its_like_is_begun_misses_what_it_computes_itself(misses: Misses) -> None:
    waits = misses.arrived(prompt(30, other=2))
    begun(misses, prompt(31, other=3), 20)
    assert misses.missed == Missed(not_begun=8)
    misses.begun(waits, 28)
    assert misses.missed == Missed(not_begun=0), "it found what came later"
