"""The order in which waiting requests are served, and who leaves a queue that is full."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.api.admission.fair_queue import FairQueue, KeyName, Use, Waiting
from baton.core.turns import PASSED_A_STEP, turn_of

SHARES = {"ada": 1.0, "ben": 1.0, "cyn": 3.0}
numbers = itertools.count()


def queue() -> FairQueue:
    return FairQueue(lambda key: SHARES.get(key or "", 1.0))


def waiting(key: KeyName, tokens: int = 10, priority: int = 0) -> Waiting:
    return Waiting(key, turn_of(next(numbers), priority), tokens, tokens)


def served(waits: FairQueue, count: int) -> list[Waiting]:
    found = [waits.pop(lambda each: True) for _ in range(count)]
    return [each for each in found if each is not None]


def test_requests_of_one_key_are_served_by_turn() -> None:
    waits = queue()
    first, second, urgent = waiting(None), waiting(None), waiting(None, priority=1)
    for each in (first, second, urgent):
        waits.add(each)
    assert (len(waits), waits.tokens) == (3, 30)
    assert served(waits, 4) == [urgent, first, second]
    assert (len(waits), waits.tokens) == (0, 0)


def test_who_passes_by_an_empty_queue_is_charged_as_who_waits_in_it() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, waited, passed = random.Random(seed), queue(), queue()
    for _ in range(200):
        each = waiting(rng.choice([*SHARES]), rng.randrange(1, 99))
        waited.add(each)
        assert served(waited, 1) == [each]
        passed.pass_by(each)
    assert (len(passed), passed.tokens) == (0, 0)
    later = [waiting(key, rng.randrange(1, 99)) for key in SHARES for _ in range(40)]
    for each in later:
        waited.add(each)
        passed.add(each)
    assert served(passed, len(later)) == served(waited, len(later))


def due(at: float, priority: int = 0) -> Waiting:
    return replace(waiting("ada", priority=priority), due=at)


def test_the_earliest_deadline_is_next_among_equal_priorities() -> None:
    waits = queue()
    plain, late, soon, low, high = waiting("ada"), due(9.0), due(3.0), due(1.0, -1), due(5.0, 1)
    for each in (plain, late, soon, low, high):
        waits.add(each)
    assert served(waits, 5) == [high, soon, late, plain, low]


def test_a_deadline_that_does_not_fit_does_not_hold_up_the_others() -> None:
    waits = queue()
    soon, plain = due(1.0), waiting("ada")
    for each in (plain, soon):
        waits.add(each)
    assert waits.pop(lambda each: each is not soon) is plain
    assert served(waits, 1) == [soon]


@pytest.mark.parametrize("ahead", [1, 2, 20, 60])
def test_deadlines_pass_nobody_without_end(ahead: int) -> None:
    """However many requests with early deadlines come, each waits for less than one step of
    priority that came after it.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, waits = random.Random(seed), queue()
    first, gone = waiting("ada"), list[Waiting]()
    waits.add(first)
    for _ in range(300):
        while len(waits) < ahead:
            waits.add(due(rng.random()) if rng.random() < 0.8 else waiting("ada"))
        gone += served(waits, 1)
    for place, each in enumerate(gone):
        assert sum(other.turn > each.turn for other in gone[:place]) < PASSED_A_STEP
    assert first in gone[:PASSED_A_STEP]


def test_a_flood_waits_behind_a_key_that_sends_little() -> None:
    waits = queue()
    flood = [waiting("ada", priority=1000) for _ in range(50)]
    for each in flood:
        waits.add(each)
    assert served(waits, 8) == flood[:8]
    mine = waiting("ben", priority=-1000)
    waits.add(mine)
    assert served(waits, 2) == [mine, flood[8]]


def test_what_a_key_did_not_use_is_not_saved_up() -> None:
    waits = queue()
    for _ in range(100):
        waits.add(waiting("ada"))
    served(waits, 50)
    for _ in range(50):
        waits.add(waiting("ben"))
    keys = [each.key for each in served(waits, 20)]
    assert 9 <= keys.count("ben") <= 11, "it would have all 20 with a credit"


def test_tokens_that_an_answer_did_not_need_are_given_back() -> None:
    waits = queue()
    for key in ("ada", "ben"):
        for _ in range(4):
            waits.add(waiting(key, tokens=100))
    first, second = served(waits, 2)
    waits.correct("ada", -99)
    assert [first.key, second.key] == ["ada", "ben"]
    assert [each.key for each in served(waits, 2)] == ["ada", "ben"]
    waits.correct("ben", 500)
    assert [each.key for each in served(waits, 3)] == ["ada", "ada", "ben"]


def test_one_that_leaves_costs_its_key_nothing() -> None:
    waits = queue()
    gone, kept, other = waiting("ada", 10_000), waiting("ada", 20), waiting("ben", 10)
    for each in (gone, kept, other):
        waits.add(each)
    waits.remove(gone)
    assert (len(waits), waits.tokens) == (2, 30)
    assert served(waits, 3) == [kept, other]


def test_one_that_does_not_fit_does_not_hold_up_the_others() -> None:
    waits = queue()
    large, small = waiting("ada", 1000), waiting("ada", 10)
    for each in (large, small):
        waits.add(each)
    assert waits.pop(lambda each: each.tokens < 100) is small
    assert waits.pop(lambda each: each.tokens < 100) is None
    assert served(waits, 1) == [large]


@given(
    st.lists(st.tuples(st.sampled_from(list(SHARES)), st.integers(1, 500)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_while_keys_have_requests_none_is_served_more_than_its_share(
    work: list[tuple[str, int]], rng: random.Random
) -> None:
    waits = queue()
    everyone = [waiting(key, tokens) for key, tokens in work]
    for each in everyone:
        waits.add(each)
    most = max(each.tokens for each in everyone)
    left = {key: [each for each in everyone if each.key == key] for key in SHARES}
    used = dict.fromkeys(SHARES, 0.0)
    while (served := waits.pop(lambda each: True)) is not None:
        busy = [key for key, mine in left.items() if mine]
        assert served.key in busy
        assert used[served.key] <= min(used[key] for key in busy) + 1e-6
        left[served.key].remove(served)
        used[served.key] += served.tokens / SHARES[served.key]
        busy = [key for key, mine in left.items() if mine]
        assert all(abs(used[a] - used[b]) <= most for a in busy for b in busy)
    assert not any(left.values()) and not len(waits) and not waits.tokens


def test_the_last_of_the_key_with_most_must_leave() -> None:
    waits = queue()
    flood = [waiting("ada") for _ in range(5)]
    few = [waiting("ben") for _ in range(2)]
    for each in (*flood, *few):
        waits.add(each)
    for newcomer, requests, tokens, leave in (
        (waiting("cyn"), 1, 0, [flood[4]]),
        (waiting("ben"), 1, 0, [flood[4]]),
        (waiting("ben", 50), 0, 25, None),  # it would have most tokens itself
        (waiting("cyn", 50), 0, 25, [flood[4], flood[3], flood[2]]),
        (waiting("ada"), 1, 0, None),
        (waiting("ada"), 0, 0, []),
    ):
        assert waits.victims(newcomer, requests, tokens, {}) == leave
    # What a key has on the workers counts too.
    assert waits.victims(waiting("cyn"), 1, 0, {"ben": Use(9, 90)}) == [few[1]]
    assert waits.victims(waiting("ben"), 1, 0, {"ben": Use(9, 90)}) is None
    assert waits.victims(waiting("cyn"), 1, 0, {None: Use(99, 990)}) == [flood[4]]
    assert len(waits) == 7, "nobody has left yet"


def test_the_work_before_a_request_is_that_of_its_key_and_of_the_others_shares() -> None:
    waits = queue()
    for key, count in (("ada", 6), ("cyn", 9)):
        for _ in range(count):
            waits.add(waiting(key))
    assert waits.tokens_before("ben") == 0
    assert waits.tokens_before("cyn") == 90 * 4 / 3
    assert waits.tokens_before("ada") == 150, "no more than there is"
