"""The states that the router expects of prompts that are placed and not computed yet."""

import pytest

from baton.proto.common_pb2 import PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.router.cluster_view.expected_states import ExpectedStates, leaves
from baton.router.cluster_view.prefix_lengths import PrefixLengths
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.text.prefix_digest import PromptPrefixes

GRID = 4
PROMPT = tuple(range(11))


@pytest.fixture
def table() -> WorkerTable:
    return WorkerTable(1.0, lambda: 0.0)


def join(table: WorkerTable, name: str, incarnation: int = 1) -> Worker:
    identity = WorkerIdentity(worker_id=name, incarnation=incarnation, address="a:1", role=PREFILL)
    hello = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
    return table.register(hello)


@pytest.mark.parametrize(
    ("tokens", "grid", "depths"),
    [(11, 4, [8]), (12, 4, [8, 12]), (4, 4, [4]), (3, 4, []), (11, 0, []), (12, 0, [])],
)
def test_a_prompt_leaves_its_last_state_on_the_grid(
    tokens: int, grid: int, depths: list[int]
) -> None:
    """The last token of a prompt that comes again is computed: it needs one more."""
    assert [depth for depth, _ in leaves(PromptPrefixes(range(tokens)), grid)] == depths


def test_what_two_prompts_will_leave_is_expected_until_both_are_gone(table: WorkerTable) -> None:
    states, worker = ExpectedStates(table, PrefixLengths()), join(table, "p0")
    will_leave = leaves(PromptPrefixes(PROMPT), GRID)
    one, two = (states.expect(worker, will_leave) for _ in range(2))
    assert states.find(PromptPrefixes((*PROMPT, 9))) == {("p0", 1): 8}
    assert states.find(PromptPrefixes(PROMPT[:8])) == {}, "a token must be left to compute"
    for other in (PromptPrefixes((9, *PROMPT)), PromptPrefixes((*PROMPT, 9), b"salt")):
        assert states.find(other) == {}
    one.drop()
    assert states.find(PromptPrefixes((*PROMPT, 9))) == {("p0", 1): 8}
    two.drop()
    assert states.find(PromptPrefixes((*PROMPT, 9))) == {} and not len(states)


def test_the_report_after_a_prompt_takes_the_place_of_what_was_expected(table: WorkerTable) -> None:
    states = ExpectedStates(table, PrefixLengths())
    worker, other = join(table, "p0"), join(table, "p1")
    expected = states.expect(worker, leaves(PromptPrefixes(PROMPT), GRID))
    states.heard(worker)
    assert states.find(PromptPrefixes(PROMPT)), "it is not computed yet"
    expected.made()
    states.heard(other)
    assert states.find(PromptPrefixes(PROMPT)), "its worker has not reported since"
    states.heard(worker)
    assert not states.find(PromptPrefixes(PROMPT)) and not len(states)


def test_a_worker_that_is_lost_leaves_nothing_behind(table: WorkerTable) -> None:
    states, worker = ExpectedStates(table, PrefixLengths()), join(table, "p0")
    computed, queued = (
        states.expect(worker, leaves(PromptPrefixes(PROMPT), GRID)) for _ in range(2)
    )
    computed.made()
    table.remove(worker, "lost")
    queued.drop()
    assert not len(states)
