"""The moves of a hand-off's writer, one by one."""

import itertools

import pytest

from baton.prefill.writer_state import ALLOWED, WriterState
from baton.transfer.errors import MoveError
from baton.transfer.state_machine import StateMachine

S = WriterState

ON = [S.WAITING, S.CONNECTING, S.POSTING, S.POSTED, S.FLUSHING, S.RELEASED, S.RECEIVED]
"""The writer of a hand-off that goes well."""

EXPECTED = set(itertools.pairwise(ON)) | {
    (S.WAITING, S.STOPPED),
    (S.CONNECTING, S.STOPPED),
    (S.POSTING, S.DRAINING),
    (S.POSTED, S.DRAINING),
    (S.FLUSHING, S.DRAINING),
    (S.RELEASED, S.DRAINING),
    (S.DRAINING, S.STOPPED),
}


@pytest.mark.parametrize(("source", "to"), list(itertools.product(S, S)))
def test_a_move_works_if_and_only_if_it_is_listed_here(source: S, to: S) -> None:
    machine = StateMachine("writer", ALLOWED, source)
    if (source, to) in EXPECTED:
        machine.move(to)
        assert machine.state is to
    else:
        with pytest.raises(MoveError, match=f"from {source} to {to}"):
            machine.move(to)
        assert machine.state is source


def test_a_writer_that_may_have_bytes_under_way_drains_before_it_stops() -> None:
    may_write = {S.POSTING, S.POSTED, S.FLUSHING, S.RELEASED}
    assert {s for s in S if S.DRAINING in ALLOWED[s]} == may_write
    assert not any(S.STOPPED in ALLOWED[s] for s in may_write)


def test_a_writer_ends_when_all_is_received_or_when_it_has_stopped() -> None:
    assert {s for s in S if not ALLOWED[s]} == {S.RECEIVED, S.STOPPED}
