"""Tests of the room that a router has on workers of which it has a share only."""

import pytest
from router.test_placement import PROMPT, Setup

from baton.proto.worker_pb2 import WorkerStatus
from baton.text.prefix_digest import PromptPrefixes

PLACES = 4  # of each rank


def say(setup: Setup, name: str, share: int | None, running: int = 0) -> None:
    """Report a worker's load of all routers, and this router's share; None: it is alone."""
    status = WorkerStatus(running=running, max_running=PLACES)
    setup.table.report(setup.workers[name], status, leaving=False, share=share)


def send(setup: Setup) -> str:
    """Place a request that stays; return its rank's id."""
    placement = setup.placer.place(PromptPrefixes(PROMPT))
    assert placement is not None
    setup.placer.track(placement).prefill_done()
    return placement.rank.worker_id


@pytest.mark.parametrize(
    ("share", "running", "free"),
    [
        (None, 1, 3),  # the rank's places but for the one that is taken
        (4, 1, 3),
        (2, 1, 1),  # its share but for that one
        (1, 1, 0),
        (3, 3, 1),  # others have taken what its share would allow
    ],
)
def test_free_places_are_those_of_the_share_and_of_the_rank(
    share: int | None, running: int, free: int
) -> None:
    setup = Setup(prefills=1, ranks=1)
    say(setup, "d0", None)
    assert send(setup) == "d0"
    say(setup, "d0", share, running)
    assert setup.placer.places().ranks == {"d0": free}


def test_no_more_is_sent_than_the_share() -> None:
    """A rank that the router has alone takes requests ahead too: two of each prefill worker."""
    setup = Setup(prefills=1, ranks=1)
    say(setup, "d0", 3)
    assert setup.placer.room().by_rank == {0: 3}
    say(setup, "d0", None)
    assert setup.placer.room().by_rank == {0: PLACES + 2}


def test_a_request_goes_ahead_where_no_share_forbids_it() -> None:
    setup = Setup(prefills=1, ranks=2)
    say(setup, "d0", 1)
    say(setup, "d1", None)
    assert sorted(send(setup) for _ in range(1 + PLACES)) == ["d0", *["d1"] * PLACES]
    assert send(setup) == "d1", "the share of d0 is used up"
