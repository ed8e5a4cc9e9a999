"""The hand-off's state machine is its table, and nothing else."""

import itertools

import pytest

from baton.core.handoff_ids import HandoffId
from baton.transfer.errors import MoveError
from baton.transfer.handoff import ALLOWED, Handoff, HandoffState

S = HandoffState


def at(state: HandoffState, moves: list[tuple[HandoffState, HandoffState, str]]) -> Handoff:
    """A hand-off that has been walked to `state`; later moves land in `moves`."""
    path: dict[HandoffState, tuple[HandoffState, ...]] = {S.QUEUED: ()}
    for _ in S:
        for source, steps in list(path.items()):
            for to in sorted(ALLOWED[source]):
                path.setdefault(to, (*steps, to))
    handoff = Handoff(HandoffId("r", 1), lambda h, a, b, why: moves.append((a, b, why)))
    for step in path[state]:
        handoff.move(step)
    moves.clear()
    return handoff


@pytest.mark.parametrize(("source", "to"), list(itertools.product(S, S)))
def test_a_move_works_if_and_only_if_the_table_has_it(
    source: HandoffState, to: HandoffState
) -> None:
    moves: list[tuple[HandoffState, HandoffState, str]] = []
    handoff = at(source, moves)
    if to in ALLOWED[source]:
        handoff.move(to, "because")
        assert handoff.state is to
        assert moves == [(source, to, "because")]
    else:
        with pytest.raises(MoveError, match=f"from {source} to {to}"):
            handoff.move(to)
        assert handoff.state is source
        assert moves == []


def test_the_way_of_a_request_that_goes_well_is_allowed() -> None:
    moves: list[tuple[HandoffState, HandoffState, str]] = []
    handoff = at(S.QUEUED, moves)
    for to in (S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE, S.ACTIVE):
        handoff.move(to)
    assert handoff.over


@pytest.mark.parametrize("end", [S.FAILED, S.CANCELLED, S.EXPIRED])
def test_every_state_that_is_not_over_can_end(end: HandoffState) -> None:
    for state in S:
        if ALLOWED[state]:
            assert end in ALLOWED[state]


def test_quarantine_is_entered_only_where_a_peer_may_write_and_left_only_for_an_end() -> None:
    assert {s for s in S if S.QUARANTINED in ALLOWED[s]} == {S.RESERVED, S.WRITING}
    assert ALLOWED[S.QUARANTINED] == {S.FAILED, S.CANCELLED, S.EXPIRED}
