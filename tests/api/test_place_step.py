"""The moves of a request at the router's door, one by one."""

import itertools

import pytest

from baton.api.admission.place_step import ALLOWED, PlaceStep, moved
from baton.core.errors import InvariantError

S = PlaceStep

EXPECTED = {
    (S.WAITING, S.CALLED),
    (S.CALLED, S.PLACED),
    (S.CALLED, S.ON_RANK),  # its rank computes the prompt
    (S.PLACED, S.ON_RANK),
    *((step, S.WAITING) for step in (S.CALLED, S.PLACED, S.ON_RANK)),  # no worker has it any more
    *((step, S.LEFT) for step in S if step is not S.LEFT),
}


@pytest.mark.parametrize(("source", "to"), list(itertools.product(S, S)))
def test_a_move_works_if_and_only_if_it_is_listed_here(source: S, to: S) -> None:
    if (source, to) in EXPECTED:
        assert moved(source, to) is to
    else:
        with pytest.raises(InvariantError, match=f"cannot go from {source} to {to}"):
            moved(source, to)


def test_a_request_that_has_left_stays_away() -> None:
    assert {step for step in S if not ALLOWED[step]} == {S.LEFT}
