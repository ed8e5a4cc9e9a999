"""Placement policies, whatever the candidates."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.router.policies import POLICIES, Candidate, LeastLoad, PowerOfTwo, Random, RoundRobin

snapshots = st.lists(
    st.builds(
        Candidate,
        worker_id=st.integers(0, 30).map(lambda i: f"w{i}"),
        load=st.integers(0, 20),
        slots=st.integers(1, 8),
    ),
    max_size=8,
    unique_by=lambda c: c.worker_id,
).map(lambda cs: sorted(cs, key=lambda c: (len(c.worker_id), c.worker_id)))
"""As the table gives them."""


@pytest.mark.parametrize("name", POLICIES)
@given(calls=st.lists(snapshots, max_size=5))
def test_every_policy_gives_back_exactly_what_it_was_given(
    name: str, calls: list[list[Candidate]]
) -> None:
    policy = POLICIES[name]()
    for candidates in calls:
        ordered = policy.order(candidates)
        assert sorted(ordered, key=repr) == sorted(candidates, key=repr)


@given(candidates=snapshots.filter(len), rounds=st.integers(1, 4))
def test_round_robin_gives_everyone_the_same_number_of_turns(
    candidates: list[Candidate], rounds: int
) -> None:
    policy = RoundRobin()
    firsts = Counter(policy.order(candidates)[0] for _ in range(rounds * len(candidates)))
    assert set(firsts.values()) == {rounds} and len(firsts) == len(candidates)


@given(candidates=snapshots.filter(lambda cs: len(cs) > 1), data=st.data())
def test_round_robin_goes_on_with_the_next_when_the_last_one_left(
    candidates: list[Candidate], data: st.DataObject
) -> None:
    policy = RoundRobin()
    for _ in range(data.draw(st.integers(1, len(candidates)))):
        last = policy.order(candidates)[0]
    at = candidates.index(last)
    rest = [c for c in candidates if c != last]
    assert policy.order(rest)[0] == rest[at % len(rest)]


@given(candidates=snapshots)
def test_least_load_orders_by_how_full_each_is(candidates: list[Candidate]) -> None:
    fullness = [c.load / c.slots for c in LeastLoad().order(candidates)]
    assert fullness == sorted(fullness)


@given(count=st.integers(1, 6))
def test_least_load_uses_an_idle_cluster_evenly(count: int) -> None:
    policy = LeastLoad()
    idle = [Candidate(f"w{i}", 0) for i in range(count)]
    assert len({policy.order(idle)[0] for _ in range(count)}) == count


@given(candidates=snapshots.filter(lambda cs: len(cs) > 1), seed=st.integers(0, 2**32))
def test_power_of_two_puts_the_emptier_of_its_two_first(
    candidates: list[Candidate], seed: int
) -> None:
    first, second = PowerOfTwo(random.Random(seed)).order(candidates)[:2]
    assert first.fullness <= second.fullness


@given(candidates=snapshots.filter(lambda cs: len(cs) > 2), seed=st.integers(0, 2**32))
def test_power_of_two_never_starts_with_the_fullest(candidates: list[Candidate], seed: int) -> None:
    fullest = max(c.fullness for c in candidates)
    if sum(c.fullness == fullest for c in candidates) == 1:
        assert PowerOfTwo(random.Random(seed)).order(candidates)[0].fullness < fullest


@given(count=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_random_lets_anyone_be_first(count: int, seed: int) -> None:
    policy = Random(random.Random(seed))
    candidates = [Candidate(f"w{i}", i) for i in range(count)]
    assert len({policy.order(candidates)[0] for _ in range(200)}) == count
