"""Placement policies, whatever the view."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import baton.router.policies as folder
from baton.core.role import Role
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.worker_table import id_order
from baton.router.placement.links import LinkTable
from baton.router.placement.policy import RolePolicy
from baton.router.placement.view import ClusterView, PlacementRequest, RoleView
from baton.router.policies.least_load import LeastLoad
from baton.router.policies.power_of_two import PowerOfTwo
from baton.router.policies.prefix_aware import AFFINITY, PAIRED, UNCACHED, PrefixAware
from baton.router.policies.random_choice import RandomChoice
from baton.router.policies.registry import POLICIES
from baton.router.policies.round_robin import RoundRobin


@st.composite
def views(draw: st.DrawFn, role: Role = Role.DECODE, least: int = 1) -> RoleView:
    """Draw a view as the placer builds it: ids in the table's order, `least` candidates or more."""
    numbers = draw(st.sets(st.integers(0, 30), min_size=least, max_size=8))
    ids = sorted((f"{role.value[0]}{number}" for number in numbers), key=id_order)
    loads = st.lists(st.integers(0, 20), min_size=len(ids), max_size=len(ids))
    rows = st.sets(st.sampled_from(range(len(ids))), min_size=least)
    leaving = st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))
    reported, placed = draw(loads), draw(loads)
    capacity = [n % 8 + 1 for n in draw(loads)]
    return RoleView(
        role=role,
        worker_ids=ids,
        reported=reported,
        placed=placed,
        capacity=capacity,
        fullness=[max(both) / most for *both, most in zip(reported, placed, capacity, strict=True)],
        queued_tokens=draw(loads),
        prompt_token_us=draw(st.sampled_from([[0.0] * len(ids), [40.0] * len(ids)])),
        leaving=draw(leaving),
        cached_tokens={row: 16 for row in draw(rows)},
        candidates=sorted(draw(rows)),
    )


def idle(count: int) -> RoleView:
    rows, zeros = range(count), [0] * count
    ids = [f"w{row}" for row in rows]
    return RoleView(
        role=Role.DECODE, worker_ids=ids, reported=zeros, placed=zeros, capacity=[1] * count,
        fullness=zeros, queued_tokens=zeros, prompt_token_us=zeros, leaving=[False] * count,
        cached_tokens={}, candidates=rows,
    )  # fmt: skip


def without(view: RoleView, row: int) -> RoleView:
    """`view` after the worker of `row` was lost."""

    kept = [at for at in range(len(view.worker_ids)) if at != row]
    columns: dict[str, Any] = {
        name: [getattr(view, name)[at] for at in kept]
        for name in view._fields
        if name not in ("role", "cached_tokens", "candidates")
    }
    candidates = [new for new, at in enumerate(kept) if at in view.candidates]
    return view._replace(cached_tokens={}, candidates=candidates, **columns)


def first(policy: RolePolicy, view: RoleView) -> str:
    return view.worker_ids[policy.order(view)[0]]


@st.composite
def linked(draw: st.DrawFn) -> ClusterView:
    """Draw a cluster as the placer builds it, with links that differ or not."""
    prefill, decode = draw(views(Role.PREFILL)), draw(views())
    table = LinkTable()
    table.clear(len(prefill.worker_ids))
    for row in range(len(prefill.worker_ids)):
        table.set(row, draw(link_reports(decode.worker_ids)))
    return ClusterView(prefill, decode, table.differing())


@st.composite
def link_reports(draw: st.DrawFn, ranks: Sequence[str]) -> WorkerStatus:
    """Draw a prefill worker's report of its links."""
    fastest = draw(st.sampled_from([0.0, 1e8, 1e9]))
    slow = draw(st.sets(st.sampled_from(ranks))) if fastest else set()
    return WorkerStatus(
        link_bytes_per_s=fastest,
        slow_links={rank: draw(st.sampled_from([1e6, 1e7])) for rank in sorted(slow)},
        state_bytes=1_000_000,
        token_bytes=1000,
    )


clusters = linked()
alike = clusters.map(lambda view: view._replace(links=None))


def test_every_module_of_the_folder_is_one_policy() -> None:
    files = {path.stem for place in folder.__path__ for path in Path(place).glob("*.py")}
    modules = files - {"registry"}
    defined = [policy.__module__.rpartition(".")[2] for policy in POLICIES.values()]
    assert sorted(defined) == sorted(modules)
    assert set(POLICIES) == {policy.name for policy in POLICIES.values()}
    assert set(POLICIES) >= {
        "round_robin", "least_load", "random", "power_of_two", "prefix_aware",
    }  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
@given(calls=st.lists(clusters, max_size=5), wanted=st.integers(1, 4))
def test_every_policy_names_candidates_once_and_as_many_as_it_may(
    name: str, calls: list[ClusterView], wanted: int
) -> None:
    policy = POLICIES[name]()
    for view in calls:
        placement = policy.place(view, PlacementRequest(prompt_tokens=9, max_prefills=wanted))
        usable = [view.prefill.worker_ids[row] for row in view.prefill.candidates]
        assert set(placement.prefills) <= set(usable)
        assert len(set(placement.prefills)) == len(placement.prefills)
        assert 1 <= len(placement.prefills) <= wanted
        assert placement.decode in [view.decode.worker_ids[row] for row in view.decode.candidates]


@pytest.mark.parametrize("kind", [RoundRobin, LeastLoad, RandomChoice, PowerOfTwo])
@given(calls=st.lists(views(), max_size=5))
def test_an_order_has_every_candidate_once(kind: type[RolePolicy], calls: list[RoleView]) -> None:
    policy = kind()
    for view in calls:
        assert sorted(policy.order(view)) == list(view.candidates)


@given(view=views(), rounds=st.integers(1, 4))
def test_round_robin_gives_everyone_the_same_number_of_turns(view: RoleView, rounds: int) -> None:
    policy = RoundRobin()
    count = len(view.candidates)
    firsts = Counter(policy.order(view)[0] for _ in range(rounds * count))
    assert set(firsts.values()) == {rounds} and len(firsts) == count


@given(view=views(least=2), data=st.data())
def test_round_robin_goes_on_with_the_next_when_the_last_one_left(
    view: RoleView, data: st.DataObject
) -> None:
    policy = RoundRobin()
    for _ in range(data.draw(st.integers(1, len(view.candidates)))):
        last = policy.order(view)[0]
    at = list(view.candidates).index(last)
    following = view.worker_ids[view.candidates[(at + 1) % len(view.candidates)]]
    assert first(policy, without(view, last)) == following


@given(cluster=clusters)
def test_turns_are_counted_by_role(cluster: ClusterView) -> None:
    policy, alone = RoundRobin(), RoundRobin()
    decodes = []
    for _ in range(3):
        policy.order(cluster.prefill)
        decodes.append(policy.order(cluster.decode))
    assert decodes == [alone.order(cluster.decode) for _ in range(3)]


@given(view=views())
def test_least_load_orders_by_how_full_each_is(view: RoleView) -> None:
    fullness = [view.fullness[row] for row in LeastLoad().order(view)]
    assert fullness == sorted(fullness)


@given(count=st.integers(1, 6))
def test_least_load_uses_an_idle_cluster_evenly(count: int) -> None:
    policy = LeastLoad()
    assert len({first(policy, idle(count)) for _ in range(count)}) == count


@given(view=views(least=2), seed=st.integers(0, 2**32))
def test_power_of_two_puts_the_emptier_of_its_two_first(view: RoleView, seed: int) -> None:
    one, two = PowerOfTwo(random.Random(seed)).order(view)[:2]
    assert view.fullness[one] <= view.fullness[two]


@given(view=views(least=3), seed=st.integers(0, 2**32))
def test_power_of_two_never_starts_with_the_fullest(view: RoleView, seed: int) -> None:
    fullness = [view.fullness[row] for row in view.candidates]
    if fullness.count(max(fullness)) == 1:
        chosen = PowerOfTwo(random.Random(seed)).order(view)[0]
        assert view.fullness[chosen] < max(fullness)


@given(count=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_random_lets_anyone_be_first(count: int, seed: int) -> None:
    policy = RandomChoice(random.Random(seed))
    assert len({first(policy, idle(count)) for _ in range(200)}) == count


@given(view=alike, wanted=st.integers(1, 4))
def test_prefix_aware_names_the_prefill_workers_with_the_least_before_an_answer(
    view: ClusterView, wanted: int
) -> None:
    placed = PrefixAware().place(view, PlacementRequest(prompt_tokens=99, max_prefills=wanted))
    workers = view.prefill

    def cost(row: int) -> int:
        return workers.queued_tokens[row] - UNCACHED * workers.cached_tokens.get(row, 0)

    chosen = [cost(list(workers.worker_ids).index(name)) for name in placed.prefills]
    assert chosen == sorted(map(cost, workers.candidates))[:wanted]


def test_prefix_aware_copies_a_prefix_once_prompts_have_waited_as_long_as_the_copy_takes() -> None:
    """Two workers, 10 tokens of the prompt cached on the first, 200 tokens queued there."""
    view = idle(2)._replace(role=Role.PREFILL, queued_tokens=[200, 0], cached_tokens={0: 10})
    waits = 10 * UNCACHED // 200
    policy = PrefixAware()

    def place(prefix: int) -> str:
        request = PlacementRequest(prompt_tokens=99, max_prefills=1, prefix=prefix)
        return policy.place(ClusterView(view, idle(1)), request).prefills[0]

    for prefix in (7, 8, 7):
        assert [place(prefix) for _ in range(waits + 1)] == ["w0"] * waits + ["w1"]
    request = PlacementRequest(prompt_tokens=99, max_prefills=1)
    both = ClusterView(view, idle(1))
    costs = policy.costs(both, Role.PREFILL, request)
    assert costs == {"queue": [200, 0], "cached": [-10 * UNCACHED, 0]}
    assert "least to compute" in policy.reason(both, Role.PREFILL, request, 0)
    assert "worth a copy" in policy.reason(both, Role.PREFILL, request, 1)


@pytest.mark.parametrize(
    ("us", "queued", "cached", "chosen"),
    [
        ([10, 40], [300, 0], {}, "w0"),  # 4 ms there, 4 ms here: the first of equals
        ([10, 40], [310, 0], {}, "w1"),
        ([10, 40], [310, 0], {0: 1}, "w0"),
        ([10, 12], [1, 0], {}, "w1"),  # equally fast
        ([10, 0, 40], [200, 100, 0], {}, "w0"),  # the second counts as the mean, of 25
        ([10, 0, 40], [500, 100, 0], {}, "w2"),
        ([10, 0, 40], [500, 50, 0], {}, "w1"),
        ([0, 0], [1, 0], {}, "w1"),
    ],
)
def test_prefix_aware_counts_time_where_workers_differ_in_speed(
    us: list[float], queued: list[int], cached: dict[int, int], chosen: str
) -> None:
    view = idle(len(us))._replace(role=Role.PREFILL, queued_tokens=queued, prompt_token_us=us,
                   cached_tokens=cached)  # fmt: skip
    request = PlacementRequest(prompt_tokens=100, max_prefills=1)
    assert PrefixAware().place(ClusterView(view, idle(1)), request).prefills == (chosen,)


def test_prefix_aware_stays_where_the_queue_is_no_longer_than_elsewhere() -> None:
    view = idle(2)._replace(role=Role.PREFILL, cached_tokens={0: 1})
    policy = PrefixAware()
    request = PlacementRequest(prompt_tokens=99, max_prefills=1, prefix=7)
    for _ in range(2 * UNCACHED):
        assert policy.place(ClusterView(view, idle(1)), request).prefills == ("w0",)


@given(view=alike)
def test_prefix_aware_takes_a_rank_with_a_cached_prefix_unless_it_is_much_fuller(
    view: ClusterView,
) -> None:
    placed = PrefixAware().place(view, PlacementRequest(prompt_tokens=99, max_prefills=1))
    ranks = view.decode
    chosen = list(ranks.worker_ids).index(placed.decode)
    emptiest = min(map(ranks.fullness.__getitem__, ranks.candidates))
    near = [row for row in ranks.candidates if ranks.fullness[row] < emptiest + AFFINITY]
    assert chosen in near
    kept = [row for row in near if row in ranks.cached_tokens]
    assert not kept or chosen in kept
    assert ranks.fullness[chosen] == min(map(ranks.fullness.__getitem__, kept or near))


@given(view=clusters, wanted=st.integers(1, 4))
def test_prefix_aware_takes_the_pair_with_the_least_before_the_state_is_there(
    view: ClusterView, wanted: int
) -> None:
    """No pair of the cheapest prefill workers and of ranks that are not much fuller is better."""
    request = PlacementRequest(prompt_tokens=99, max_prefills=wanted)
    placed = PrefixAware().place(view, request)
    workers, ranks = view.prefill, view.decode
    token_us = max(workers.prompt_token_us)

    def cost(row: int) -> int:
        return workers.queued_tokens[row] - UNCACHED * workers.cached_tokens.get(row, 0)

    def total(row: int, rank: int) -> float:
        return cost(row) + (view.late_s(row, rank, request) * 1e6 / token_us if token_us else 0)

    order = sorted(workers.candidates, key=cost)
    emptiest = min(map(ranks.fullness.__getitem__, ranks.candidates))
    near = [row for row in ranks.candidates if ranks.fullness[row] < emptiest + AFFINITY]
    row = list(workers.worker_ids).index(placed.prefills[0])
    rank = list(ranks.worker_ids).index(placed.decode)
    assert rank in near
    assert cost(row) <= cost(order[:PAIRED][-1])
    sure = [each for each in order if cost(each) < cost(order[:PAIRED][-1])]
    for other in sure if len(order) > PAIRED else order:
        assert total(row, rank) <= min(total(other, each) for each in near)
    rest = [cost(list(workers.worker_ids).index(name)) for name in placed.prefills[1:]]
    assert rest == sorted(cost(each) for each in order if each != row)[: wanted - 1]


FAST, SLOW = 1e9, 1e7
"""Bytes a second: with SLOW a hand-off of 1 MB takes 99 ms longer, as long as 990 tokens of
100 us."""


def with_links(
    rates: Sequence[float], slow: Mapping[int, Mapping[str, float]], queued: Sequence[int]
) -> ClusterView:
    """Two prefill workers, w0 and w1, and two ranks of these names."""
    table = LinkTable()
    table.clear(2)
    for row in range(2):
        told = WorkerStatus(
            link_bytes_per_s=rates[row], slow_links=slow.get(row, {}), state_bytes=1_000_000
        )
        table.set(row, told)
    prefill = idle(2)._replace(
        role=Role.PREFILL, queued_tokens=queued, prompt_token_us=[100.0, 100.0]
    )
    return ClusterView(prefill, idle(2), table.differing())


@pytest.mark.parametrize(
    ("rates", "slow", "queued", "pairs"),
    [
        ((FAST, FAST), {}, (0, 0), {"w0 w0", "w1 w1"}),  # in turn
        ((FAST, 0.6 * FAST), {}, (0, 0), {"w0 w0", "w1 w1"}),  # much the same
        ((FAST, 0), {}, (0, 0), {"w0 w0", "w1 w1"}),  # not known: it is used
        ((FAST, 0.2 * FAST), {}, (0, 0), {"w0 w0", "w1 w1"}),  # 4 ms: hardly later
        ((FAST, SLOW), {}, (0, 0), {"w0 w0", "w0 w1"}),
        ((FAST, SLOW), {}, (980, 0), {"w0 w0", "w0 w1"}),
        ((FAST, SLOW), {}, (1000, 0), {"w1 w0", "w1 w1"}),  # sooner in spite of the link
        ((FAST, FAST), {0: {"w0": SLOW}, 1: {"w0": SLOW}}, (0, 0), {"w0 w1", "w1 w1"}),
        ((FAST, FAST), {0: {"w0": SLOW}, 1: {"w1": SLOW}}, (0, 0), {"w0 w1", "w1 w0"}),
        ((FAST, FAST), {0: {"w0": SLOW, "w1": SLOW}}, (0, 900), {"w1 w0", "w1 w1"}),
    ],
)
def test_prefix_aware_hands_over_by_fast_links(
    rates: Sequence[float],
    slow: Mapping[int, Mapping[str, float]],
    queued: Sequence[int],
    pairs: set[str],
) -> None:
    policy, view = PrefixAware(), with_links(rates, slow, queued)
    request = PlacementRequest(prompt_tokens=100, max_prefills=1)
    placed = [policy.place(view, request) for _ in range(4)]
    assert {f"{each.prefills[0]} {each.decode}" for each in placed} == pairs


def test_prefix_aware_takes_a_slow_link_where_the_other_rank_is_much_fuller() -> None:
    slow = {row: {"w0": SLOW} for row in range(2)}
    view = with_links((FAST, FAST), slow, (0, 0))
    request = PlacementRequest(prompt_tokens=100, max_prefills=1)
    ranks = view.decode._replace(fullness=[0.5, 0.5 + AFFINITY - 0.01])
    assert PrefixAware().place(view._replace(decode=ranks), request).decode == "w1"
    ranks = view.decode._replace(fullness=[0.5, 0.5 + AFFINITY])
    assert PrefixAware().place(view._replace(decode=ranks), request).decode == "w0"


def test_prefix_aware_gives_equals_their_turns() -> None:
    policy = PrefixAware()
    view = ClusterView(idle(3)._replace(role=Role.PREFILL), idle(3))
    request = PlacementRequest(prompt_tokens=99, max_prefills=1)
    placed = [policy.place(view, request) for _ in range(6)]
    assert [p.prefills for p in placed] == [(f"w{i}",) for i in (0, 1, 2)] * 2
    assert [p.decode for p in placed] == [f"w{i}" for i in (0, 1, 2)] * 2
