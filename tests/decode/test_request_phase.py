"""The moves of a request on a decode rank, one by one."""

import itertools

import pytest

from baton.decode.request_phase import ALLOWED, Phase
from baton.transfer.errors import MoveError
from baton.transfer.state_machine import StateMachine

P = Phase

EXPECTED = {
    (P.PREPARING, P.HANDOFF),
    (P.HANDOFF, P.ADOPTING),
    (P.ADOPTING, P.DECODING),
    (P.ADOPTING, P.HANDOFF),  # the engine refused it: the next prefill worker is asked
    (P.ADOPTING, P.CANCELLING),
    (P.DECODING, P.CANCELLING),
    *((phase, P.OVER) for phase in P if phase is not P.OVER),
}


@pytest.mark.parametrize(("source", "to"), list(itertools.product(P, P)))
def test_a_move_works_if_and_only_if_it_is_listed_here(source: P, to: P) -> None:
    machine = StateMachine("request r/1", ALLOWED, source)
    if (source, to) in EXPECTED:
        machine.move(to)
        assert machine.state is to
    else:
        with pytest.raises(MoveError, match=f"request r/1 cannot go from {source} to {to}"):
            machine.move(to)
        assert machine.state is source


def test_every_phase_but_the_last_can_end_and_the_last_is_final() -> None:
    assert {phase for phase in P if not ALLOWED[phase]} == {P.OVER}
    assert all(P.OVER in ALLOWED[phase] for phase in P if phase is not P.OVER)


def test_a_request_that_is_being_cancelled_cannot_be_handed_over_again() -> None:
    assert ALLOWED[P.CANCELLING] == {P.OVER}
