"""Tests of the workers that the placer chooses for a request, given the table."""

import math
import random
from array import array
from typing import Any

import pytest

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.role import Role
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, StateAt, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import WorkerStatus
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.placement.assignment import Assignment
from baton.router.placement.in_flight import InFlight
from baton.router.placement.placer import Placer
from baton.router.placement.policy import Policy
from baton.router.placement.prefill_here import PrefillHere
from baton.router.placement.reader_choice import OFFERED
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView
from baton.router.policies.registry import POLICIES
from baton.router.policies.round_robin import RoundRobin
from baton.text.prefix_digest import PrefixDigest, PromptPrefixes

PROMPT = (1, 2, 3, 4, 5)


class Setup:
    """A table of `prefills` and `ranks` workers, all reachable unless named in `cut_off`."""

    def __init__(self, prefills: int, ranks: int, policy: str = "round_robin") -> None:
        self.table = WorkerTable(1.0, lambda: 0.0)
        self.cut_off: set[str] = set()
        self.workers: dict[str, Worker] = {}
        for role, letter, count in ((PREFILL, "p", prefills), (DECODE, "d", ranks)):
            for i in range(count):
                identity = WorkerIdentity(
                    worker_id=f"{letter}{i}", address="a:1", role=role, rank=i
                )
                worker = self.table.register(
                    Hello(
                        protocol_major=PROTOCOL_MAJOR,
                        protocol_minor=PROTOCOL_MINOR,
                        worker=identity,
                    )
                )
                self.workers[worker.worker_id] = worker
        self.states = StateIndex(self.table)
        self.placer = Placer(
            self.table, self.states, self.reachable, POLICIES[policy](), prefill_fallbacks=1
        )

    def cut(self, name: str) -> None:
        self.cut_off.add(name)
        self.placer.reach_changed()

    def reachable(self, worker: Worker) -> bool:
        return worker.worker_id not in self.cut_off

    def report(
        self,
        name: str,
        running: int = 0,
        slots: int = 4,
        leaving: bool = False,
        queued_tokens: int = 0,
    ) -> None:
        status = WorkerStatus(running=running, max_running=slots, queued_tokens=queued_tokens)
        self.table.report(self.workers[name], status, leaving)

    def chosen(self, only_rank: int | None = None) -> tuple[list[str], str]:
        placement = self.placer.place(PromptPrefixes(PROMPT), only_rank)
        assert placement is not None
        return [w.worker_id for w in placement.prefills], placement.rank.worker_id


def test_prefills_come_in_order_with_as_many_fallbacks_as_are_wanted() -> None:
    setup = Setup(prefills=3, ranks=2)
    assert [setup.chosen() for _ in range(3)] == [
        (["p0", "p1"], "d0"),
        (["p1", "p2"], "d1"),
        (["p2", "p0"], "d0"),
    ]


def test_a_leaving_worker_and_an_unreachable_rank_get_nothing() -> None:
    setup = Setup(prefills=2, ranks=3)
    setup.report("p0", leaving=True)
    setup.report("d0", leaving=True)
    setup.cut("d1")
    assert {setup.chosen()[1] for _ in range(4)} == {"d2"}
    assert setup.chosen()[0] == ["p1"]


@pytest.mark.parametrize(("prefills", "ranks", "word"), [(0, 1, "prefill"), (1, 0, "decode")])
def test_a_missing_role_is_named(prefills: int, ranks: int, word: str) -> None:
    placer = Setup(prefills, ranks).placer
    assert placer.place(PromptPrefixes(PROMPT)) is None
    missing = placer.missing()
    assert missing is not None and missing.code is ErrorCode.UNAVAILABLE
    assert f"no {word} worker" in missing.message


def test_least_load_counts_what_was_reported_and_what_was_placed_since() -> None:
    setup = Setup(prefills=1, ranks=2, policy="least_load")
    setup.report("d0", running=2)
    setup.report("d1", running=0)
    tracked = []
    for _ in range(4):
        placement = setup.placer.place(PromptPrefixes(PROMPT))
        assert placement is not None
        tracked.append(setup.placer.track(placement))
    assert setup.placer.placed["d1"] == 3 and setup.placer.placed["d0"] == 1
    for in_flight in tracked:
        in_flight.release()
        in_flight.release()
    assert not any(setup.placer.placed.values())


def test_a_prefill_worker_is_free_again_after_the_first_token() -> None:
    setup = Setup(prefills=1, ranks=1)
    placement = setup.placer.place(PromptPrefixes(PROMPT))
    assert placement is not None
    in_flight = setup.placer.track(placement)
    in_flight.prefill_done()
    in_flight.prefill_done()
    assert (setup.placer.placed["p0"], setup.placer.placed["d0"]) == (0, 1)


def test_a_named_rank_is_used_and_no_other() -> None:
    setup = Setup(prefills=1, ranks=3)
    assert {setup.chosen(only_rank=1)[1] for _ in range(3)} == {"d1"}
    setup.cut("d1")
    assert setup.placer.place(PromptPrefixes(PROMPT), only_rank=1) is None
    with pytest.raises(ApiError, match="routed_dp_rank is 3; the decode ranks are 0, 1, 2"):
        setup.placer.place(PromptPrefixes(PROMPT), only_rank=3)


def test_numbers_of_ranks_stay_when_others_leave() -> None:
    setup = Setup(prefills=1, ranks=3)
    setup.report("d0", leaving=True)
    assert setup.chosen(only_rank=2)[1] == "d2"
    with pytest.raises(ApiError, match="routed_dp_rank is 3; the decode ranks are 1, 2"):
        setup.placer.place(PromptPrefixes(PROMPT), only_rank=3)


def test_a_named_rank_that_was_lost_is_waited_for() -> None:
    setup = Setup(prefills=1, ranks=3)
    setup.table.remove(setup.workers["d1"], "its stream ended")
    assert setup.placer.place(PromptPrefixes(PROMPT), only_rank=1) is None


def test_where_a_named_rank_leaves_any_other_is_as_good() -> None:
    setup = Setup(prefills=1, ranks=2)
    setup.report("d1", leaving=True)
    assert setup.chosen(only_rank=1)[1] == "d0"
    setup.table.remove(setup.workers["d1"], "it has left")
    assert setup.chosen(only_rank=1)[1] == "d0"
    assert (
        setup.placer.place(PromptPrefixes(PROMPT), 1, {setup.workers["d1"].registration})
        is not None
    )


def test_a_named_rank_that_was_lost_and_then_retired_is_waited_for_no_longer() -> None:
    setup = Setup(prefills=1, ranks=3)
    setup.table.remove(setup.workers["d2"], "its stream ended")
    setup.table.retire([1, 2])
    assert setup.chosen(only_rank=2)[1] != "d2"
    assert setup.chosen(only_rank=1)[1] == "d1", "it is still here"
    setup.table.remove(setup.workers["d1"], "its stream ended")
    assert setup.chosen(only_rank=1)[1] == "d0"
    identity = WorkerIdentity(worker_id="d2", address="a:1", role=DECODE, rank=2, incarnation=2)
    setup.table.register(
        Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            worker=identity,
        )
    )
    assert setup.chosen(only_rank=2)[1] == "d2", "the cluster has grown again"


def test_a_prefill_worker_that_registers_says_nothing_of_a_rank_that_was_lost() -> None:
    setup = Setup(prefills=1, ranks=2)
    setup.table.remove(setup.workers["d0"], "its stream ended")
    identity = WorkerIdentity(worker_id="p1", address="a:1", role=PREFILL)
    setup.table.register(
        Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            worker=identity,
        )
    )
    assert setup.placer.place(PromptPrefixes(PROMPT), only_rank=0) is None, "it is waited for still"


def test_a_rank_that_lost_the_request_is_used_only_where_there_is_no_other() -> None:
    setup = Setup(prefills=1, ranks=2)
    lost_on = {setup.workers["d0"].registration}
    for _ in range(3):
        placement = setup.placer.place(PromptPrefixes(PROMPT), lost_on=lost_on)
        assert placement is not None and placement.rank.worker_id == "d1"
    setup.cut("d1")
    again = setup.placer.place(PromptPrefixes(PROMPT), lost_on=lost_on)
    assert again is not None and again.rank.worker_id == "d0"


def test_capacity_is_that_of_the_decode_ranks_that_stay() -> None:
    setup = Setup(prefills=1, ranks=3)
    for name in ("p0", "d0", "d1"):
        setup.report(name, slots=8)
    setup.report("d2", slots=8, leaving=True)
    assert setup.placer.capacity() == 16


class Recorder(Policy):
    """Keeps what it is given, and decides what it is told to."""

    name = "recorder"

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.asked: list[tuple[ClusterView, PlacementRequest]] = []

    def place(self, view: ClusterView, request: PlacementRequest) -> Placement:
        self.asked.append((view, request))
        return self.placement


def recorded(setup: Setup, placement: Placement) -> tuple[Placer, Recorder]:
    policy = Recorder(placement)
    return Placer(setup.table, setup.states, setup.reachable, policy, 1), policy


def test_a_policy_decides_on_the_pair_and_sees_every_fact() -> None:
    setup = Setup(prefills=2, ranks=3)
    placer, policy = recorded(setup, Placement(("p1", "p0"), "d2"))
    setup.report("d1", running=3, slots=8)
    setup.report("d2", slots=2)
    setup.report("p0", leaving=True, queued_tokens=900)
    setup.cut("d0")
    setup.states.add(setup.workers["p1"], PROMPT[:1])
    setup.states.add(setup.workers["d0"], PROMPT[:4])
    setup.states.add(setup.workers["d1"], PROMPT[:2])
    assignment = placer.place(PromptPrefixes(PROMPT))
    assert assignment is not None
    assert [w.worker_id for w in assignment.prefills] == ["p1", "p0"]
    assert assignment.rank.worker_id == "d2"
    placer.track(assignment)
    placer.place(PromptPrefixes(PROMPT))
    (_, (view, request)) = policy.asked
    prefix = PrefixDigest().add(array("I", PROMPT[:1]).tobytes())
    assert request == PlacementRequest(prompt_tokens=5, max_prefills=2, prefix=prefix)
    assert view.prefill == RoleView(
        role=Role.PREFILL, worker_ids=["p0", "p1"], reported=[0, 0], placed=[0, 1], capacity=[4, 1],
        fullness=[0, 1], queued_tokens=[900, 4], prompt_token_us=[0, 0],
        leaving=[True, False], cached_tokens={1: 1}, candidates=[1],
    )  # fmt: skip
    assert view.decode == RoleView(
        role=Role.DECODE, worker_ids=["d0", "d1", "d2"], reported=[0, 3, 0], placed=[0, 0, 1],
        capacity=[1, 8, 2], fullness=[0, 3 / 8, 1 / 2], queued_tokens=[0, 0, 0],
        prompt_token_us=[0, 0, 0], leaving=[False, False, False], cached_tokens={0: 4, 1: 2},
        candidates=[1, 2],
    )  # fmt: skip


def test_the_deepest_state_is_named_even_where_its_rank_takes_no_request() -> None:
    setup = Setup(prefills=1, ranks=2)
    setup.cut("d0")
    for count, name in ((4, "d0"), (2, "d1"), (5, "d1")):
        setup.states.add(setup.workers[name], PROMPT[:count])
    assignment = setup.placer.place(PromptPrefixes(PROMPT))
    assert assignment is not None and assignment.rank.worker_id == "d1"
    expected = StateAt(worker=setup.workers["d0"].identity, tokens=4)
    assert assignment.state_at == expected, "of all five, no token would be left to compute"
    assignment = setup.placer.place(PromptPrefixes(PROMPT[::-1]))
    assert assignment is not None and assignment.state_at is None


def test_of_equally_deep_states_the_first_ranks_is_named() -> None:
    setup = Setup(prefills=1, ranks=11)
    for name in ("d10", "d2", "p0"):
        setup.states.add(setup.workers[name], PROMPT[:2])
    assignment = setup.placer.place(PromptPrefixes(PROMPT))
    assert assignment is not None
    assert assignment.state_at == StateAt(worker=setup.workers["d2"].identity, tokens=2)


def test_a_policy_is_asked_only_where_both_roles_have_a_candidate() -> None:
    setup = Setup(prefills=1, ranks=1)
    placer, policy = recorded(setup, Placement(("p0",), "d0"))
    setup.cut("d0")
    assert placer.place(PromptPrefixes(PROMPT)) is None
    setup.cut_off.clear()
    setup.placer.reach_changed()
    setup.report("p0", leaving=True)
    assert placer.place(PromptPrefixes(PROMPT)) is None
    assert not policy.asked


def test_tokens_to_prefill_count_until_the_first_token_and_cached_ones_do_not() -> None:
    setup = Setup(prefills=2, ranks=1)
    placer, policy = recorded(setup, Placement(("p1",), "d0"))
    setup.states.add(setup.workers["p1"], PROMPT[:3])

    def place() -> tuple[InFlight, list[int]]:
        assignment = placer.place(PromptPrefixes(PROMPT))
        assert assignment is not None
        queued = list(policy.asked[-1][0].prefill.queued_tokens)  # the column goes on
        return placer.track(assignment), queued

    first, queued = place()
    assert queued == [0, 0]
    second, queued = place()
    assert queued == [0, 2]
    third, queued = place()
    assert queued == [0, 4]
    first.prefill_done()
    second.release()
    _, queued = place()
    assert queued == [0, 2]
    third.release()


def grid_of(setup: Setup, name: str, grid: int) -> None:
    settings = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
                "mamba_checkpoint_grid": str(grid)}  # fmt: skip
    setup.table.report(setup.workers[name], WorkerStatus(settings=settings), leaving=False)


def test_a_prompt_is_placed_behind_one_that_will_leave_the_prefix_there() -> None:
    setup = Setup(prefills=3, ranks=1, policy="prefix_aware")
    for name in ("p0", "p1", "p2"):
        grid_of(setup, name, 4)
    first = setup.placer.place(PromptPrefixes(PROMPT))
    assert first is not None and first.to_prefill == 5
    in_flight = setup.placer.track(first)
    second = setup.placer.place(PromptPrefixes((*PROMPT, 6)))
    assert second is not None and second.prefills[0] is first.prefills[0]
    assert second.to_prefill == 2 and second.state_at is None
    assert setup.placer.place(PromptPrefixes((9, *PROMPT))).prefills[0] is not first.prefills[0]  # type: ignore[union-attr]
    in_flight.release()
    other = setup.placer.place(PromptPrefixes((*PROMPT, 6)))
    assert other is not None and other.to_prefill == 6, "it was never computed"


def test_who_goes_elsewhere_leaves_the_state_that_it_would_have_had() -> None:
    setup = Setup(prefills=2, ranks=1)
    for name in ("p0", "p1"):
        grid_of(setup, name, 4)
    prompt = tuple(range(11))
    setup.states.add(setup.workers["p0"], prompt[:4])
    for worker, junctions, depths in (("p1", (4,), [4, 8]), ("p0", (), [8])):
        placer, _ = recorded(setup, Placement((worker,), "d0"))
        assignment = placer.place(PromptPrefixes(prompt))
        assert assignment is not None and assignment.junctions == junctions
        assert [depth for depth, _ in assignment.leaves] == depths
    setup.states.add(setup.workers["p0"], prompt[:6])  # at which no prefill can leave one
    placer, _ = recorded(setup, Placement(("p1",), "d0"))
    assignment = placer.place(PromptPrefixes(prompt))
    assert assignment is not None and assignment.junctions == ()


def here(setup: Setup, most: int, tokens: int = 5) -> Assignment:
    placer = Placer(setup.table, setup.states, setup.reachable, RoundRobin(), 1, PrefillHere(most))
    assignment = placer.place(PromptPrefixes(tuple(range(tokens))))
    assert assignment is not None
    return assignment


def test_a_rank_computes_a_short_prompt_where_a_prefill_worker_would_take_longer() -> None:
    setup = Setup(prefills=1, ranks=1)
    assert not here(setup, 5).here, "neither has anything to compute"
    setup.report("p0", queued_tokens=1)
    assert here(setup, 5).here and not here(setup, 4).here and not here(setup, 0).here
    setup.states.add(setup.workers["d0"], tuple(range(2)))
    found = here(setup, 3)
    assert found.here and found.to_prefill == 3 and found.reader is found.rank
    setup.report("d0", queued_tokens=1)
    assert not here(setup, 5).here, "somebody waits there"


def test_thresholds_go_by_the_prefill_worker_with_the_shortest_queue() -> None:
    setup = Setup(prefills=2, ranks=2)
    placer = Placer(setup.table, setup.states, setup.reachable, RoundRobin(), 1, PrefillHere(None))
    for name, queued in (("p0", 500), ("p1", 100), ("d0", 0), ("d1", 7)):
        status = WorkerStatus(max_running=4, queued_tokens=queued, prompt_token_us=100)
        setup.table.report(setup.workers[name], status, leaving=False)
    assert placer.readers.thresholds() == {"d0": pytest.approx(999, abs=1), "d1": 0}, (
        "d1 has a prompt already"
    )


def learnt_placer(setup: Setup, **queued: int) -> Placer:
    """Return a placer by measured speeds; all workers are alike. queued: tokens by worker."""
    for name in setup.workers:
        status = WorkerStatus(max_running=4, prompt_token_us=100, queued_tokens=queued.get(name, 0))
        setup.table.report(setup.workers[name], status, leaving=False)
    return Placer(setup.table, setup.states, setup.reachable, RoundRobin(), 1, PrefillHere(None))


def test_prompts_that_wait_at_the_router_gain_by_what_a_rank_computes() -> None:
    """They would find room at the prefill worker if the rank computed this one."""
    setup = Setup(prefills=1, ranks=1)
    placer = learnt_placer(setup)
    prompt = PromptPrefixes(tuple(range(100)))

    def placed() -> Assignment:
        assignment = placer.place(prompt)
        assert assignment is not None
        return assignment

    assert not placed().here
    writing = [placer.track(placed())]
    writing[0].prefill_done()
    with placer.waiting(PromptPrefixes(tuple(range(40)))):
        assert placed().decision.here.answers == 1
        assert not placed().here, "the answer loses as much"
        with placer.waiting(PromptPrefixes(tuple(range(20)))):
            assert placed().here
        writing[0].release()
        assert placed().here, "nothing is written there now"
    assert not placed().here


def test_of_several_ranks_one_that_has_nothing_to_lose_computes_the_prompt() -> None:
    setup = Setup(prefills=1, ranks=3)
    placer = learnt_placer(setup, p0=100)
    prompt = PromptPrefixes(tuple(range(100)))
    busy = []
    for _ in range(2):  # the policy goes round: on d0 and d1
        assignment = placer.place(prompt)
        assert assignment is not None and assignment.here and not assignment.decision.moved
        busy.append(placer.track(assignment))
    assert assignment is not None and placer.track(assignment) is not None
    for _ in range(3):  # the policy chooses d2, d0 and d1; the others have prompts already
        assignment = placer.place(prompt)
        assert assignment is not None and assignment.here
        assert assignment.rank.worker_id == "d2" and assignment.reader is assignment.rank
        moved = assignment.decision.moved
    assert moved
    pinned = placer.place(prompt, only_rank=0)
    assert pinned is not None and pinned.rank.worker_id == "d0" and not pinned.here
    assert placer.place(prompt, only_rank=0, for_rank=True) is None


def test_the_room_for_prompts_counts_ranks_that_would_compute_one() -> None:
    setup = Setup(prefills=1, ranks=2)
    placer = learnt_placer(setup, p0=100)
    assert placer.room().on_ranks() == (2, pytest.approx(999, abs=1))
    prompt = PromptPrefixes(tuple(range(50)))
    before = placer.room().changes
    first = placer.place(prompt)
    assert first is not None and first.here
    in_flight = placer.track(first)
    assert placer.room().on_ranks().ranks == 1 and placer.room().changes > before
    in_flight.prefill_done()  # one answer is written on d0: it loses as much as the prompt takes
    assert placer.room().on_ranks() == (2, pytest.approx(999, abs=1))
    setup.report("p0")
    assert placer.room().on_ranks() == (0, 0), "the prefill worker has nothing to do"
    with placer.waiting(prompt):
        assert placer.room().on_ranks() == (0, 0), "it is not behind itself"
        with placer.waiting(prompt):
            assert placer.room().on_ranks().ranks == 1
    setup.report("p0", queued_tokens=10**6)
    setup.report("d0", queued_tokens=1)
    assert placer.room().on_ranks().ranks == 1, "an answer was preempted on d0"
    setup.report("d1", running=4)
    assert placer.room().on_ranks().ranks == 0, "d1 has no free place"


def test_ranks_with_prompts_do_not_hide_one_without() -> None:
    """Few ranks are weighed, and none of those that have a prompt already is among them."""
    setup = Setup(prefills=1, ranks=6)
    placer = learnt_placer(setup, p0=900)
    for number in range(6):
        assert placer.room().on_ranks().ranks == min(6 - number, OFFERED)
        assignment = placer.place(PromptPrefixes(PROMPT))
        assert assignment is not None and assignment.here
        placer.track(assignment)
    assert placer.room().on_ranks().ranks == 0


def test_a_report_from_before_a_first_token_does_not_keep_the_rank_waiting() -> None:
    setup = Setup(prefills=1, ranks=1)
    placer = learnt_placer(setup, p0=900)
    prompt = PromptPrefixes(tuple(range(100)))
    first = placer.place(prompt)
    assert first is not None and first.here
    in_flight = placer.track(first)
    setup.report("d0", queued_tokens=100)
    assert not placer.room().on_ranks().ranks
    in_flight.prefill_done()
    assert placer.room().on_ranks().ranks == 1
    setup.report("d0", queued_tokens=40)
    assert not placer.room().on_ranks().ranks, "somebody else's"


def test_a_rank_computes_one_prompt_at_a_time() -> None:
    setup = Setup(prefills=1, ranks=1)
    setup.report("p0", queued_tokens=900)
    setup.placer = Placer(
        setup.table, setup.states, setup.reachable, RoundRobin(), 1, PrefillHere(100)
    )
    first = setup.placer.place(PromptPrefixes(PROMPT))
    assert first is not None and first.here
    in_flight = setup.placer.track(first)
    assert setup.placer.placed == {"d0": 1}
    second = setup.placer.place(PromptPrefixes(PROMPT))
    assert second is not None and not second.here
    in_flight.prefill_done()
    assert setup.placer.placed == {"d0": 1}
    third = setup.placer.place(PromptPrefixes(PROMPT))
    assert third is not None and third.here
    in_flight.release()
    assert not any(setup.placer.placed.values())


@pytest.mark.parametrize(
    "changed",
    [{"disable_radix_cache": "true"}, {"mamba_scheduler_strategy": '"no_buffer"'}, None],
)
def test_workers_that_keep_no_states_of_prompts_are_not_expected_to(
    changed: dict[str, str] | None,
) -> None:
    setup = Setup(prefills=1, ranks=1)
    if changed is not None:
        grid_of(setup, "p0", 4)
        status = WorkerStatus()
        status.CopyFrom(setup.table.worker("p0").status)
        for name, value in changed.items():
            status.settings[name] = value
        setup.table.report(setup.workers["p0"], status, leaving=False)
    assignment = setup.placer.place(PromptPrefixes(PROMPT))
    assert assignment is not None and assignment.leaves == ()


def test_a_state_of_a_prefill_worker_is_not_one_that_may_be_fetched() -> None:
    setup = Setup(prefills=1, ranks=1)
    setup.states.add(setup.workers["p0"], PROMPT[:3])
    assignment = setup.placer.place(PromptPrefixes(PROMPT))
    assert assignment is not None and assignment.state_at is None


def test_room_places_and_capacity_follow_every_change_of_the_workers() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    setup = Setup(prefills=4, ranks=5)
    in_flight: list[InFlight] = []
    for _ in range(200):
        name = rng.choice(sorted(setup.workers))
        status = WorkerStatus(running=rng.randrange(3), max_running=4)
        share = rng.choice((None, None, rng.randrange(1, 5)))
        setup.table.report(setup.workers[name], status, rng.random() < 0.2, share)
        setup.cut_off = set(rng.sample(sorted(setup.workers), 2))
        setup.placer.reach_changed()
        assignment = setup.placer.place(PromptPrefixes(PROMPT))
        if assignment is not None:
            in_flight.append(setup.placer.track(assignment))
        for each in rng.sample(in_flight, len(in_flight) // 4):
            each.release()
        prefills, ranks = (
            [w for w in setup.table.workers(role) if not w.leaving]
            for role in (Role.PREFILL, Role.DECODE)
        )
        assert setup.placer.capacity() == sum(
            w.capacity if w.share is None else min(w.capacity, w.share) for w in ranks
        )
        placed = setup.placer.placed
        ranks = [w for w in ranks if setup.reachable(w)]
        room, places = setup.placer.room(), setup.placer.places()
        if not prefills or not ranks:
            assert room.decode is None
            continue
        ahead = math.ceil(2 * len(prefills) / len(ranks))
        assert room.by_rank == {
            w.rank: (w.capacity + ahead if w.share is None else w.share) - placed[w.worker_id]
            for w in ranks
        }
        assert room.decode == sum(max(each, 0) for each in room.by_rank.values())
        assert room.prefill_workers == len(prefills)
        assert room.prompt_tokens == sum(2 * 8192 if w.share is None else w.share for w in prefills)
        assert room.shared_prefills == sum(w.share is not None for w in prefills)
        assert places.idle_prefills == [
            w.worker_id for w in prefills if not w.load and not placed[w.worker_id]
        ]
        assert places.ranks == {
            w.worker_id: w.capacity - placed[w.worker_id]
            if w.share is None
            else min(w.capacity - max(placed[w.worker_id], w.load), w.share - placed[w.worker_id])
            for w in ranks
        }


def test_what_a_request_was_placed_by_stays_as_it_was() -> None:
    """The columns of the cluster go on; those of a decision that is looked at later do not."""
    setup = Setup(prefills=2, ranks=2, policy="prefix_aware")
    setup.report("p0", queued_tokens=30)
    setup.report("p1", queued_tokens=10)
    setup.report("d0", running=1, slots=4)
    setup.report("d1", running=2, slots=4)
    setup.states.add(setup.workers["d1"], PROMPT[:2])
    placed = setup.placer.place(PromptPrefixes(PROMPT))
    assert placed is not None
    setup.placer.track(placed)
    setup.report("p1", queued_tokens=999)
    setup.report("d0", running=4, slots=4)
    setup.table.remove(setup.workers["d1"], "lost")
    seen = placed.decision.seen()
    assert (seen.prefill.worker_ids, seen.prefill.queued_tokens) == (["p0", "p1"], [30, 10])
    assert (seen.decode.worker_ids, seen.decode.fullness) == (["d0", "d1"], [0.25, 0.5])
    assert placed.decision.reported == {"d1": 2}
    assert seen.prefill.cached_tokens == {} and seen.decode.cached_tokens == {1: 2}
    assert (placed.decision.there.queued, placed.decision.there.tokens) == (10, len(PROMPT))
    assert placed.decision.request.prompt_tokens == len(PROMPT)


def test_a_decision_knows_why_each_of_the_others_could_not_be_chosen() -> None:
    setup = Setup(prefills=4, ranks=4)
    setup.report("p2", leaving=True)
    setup.report("d2", leaving=True)
    setup.cut("d3")
    lost_on = {setup.workers["d0"].registration}

    def excluded(**wish: Any) -> dict[str, str]:
        placement = setup.placer.place(PromptPrefixes(PROMPT), **wish)
        assert placement is not None
        decision = placement.decision
        return {
            name: reason.value
            for role in (Role.PREFILL, Role.DECODE)
            for row, name in enumerate(decision.view.of(role).worker_ids)
            if (reason := decision.excluded(role, row)) is not None
        }

    always = {"p2": "leaving", "d2": "leaving"}
    cut = {"d3": "no free place, or no connection to it"}
    other = "another rank is asked for"
    assert excluded() == {**always, **cut}
    assert excluded(lost_on=lost_on) == {**always, **cut, "d0": "it lost the request"}
    assert excluded(avoid="p0") == {**always, **cut, "p0": "the request was taken back from it"}
    assert excluded(only_rank=1) == {**always, "d0": other, "d3": other}
    assert excluded(only_rank=2) == {**always, **cut}, "it leaves: any will do"
    setup.cut("d1")
    assert excluded(lost_on=lost_on) == {**always, **cut, "d1": cut["d3"]}, "d0 has no other beside"
    status = WorkerStatus(max_running=4)
    setup.table.report(setup.workers["p1"], status, False, 3)
    for _ in range(2):  # one of them on p1
        placement = setup.placer.place(PromptPrefixes(PROMPT), avoid="p0")
        assert placement is not None
        setup.placer.track(placement)
    found = excluded(avoid="p0")
    assert found["p1"] == "this router's share of it is used up"
    assert found["p0"] == "the request was taken back from it"
