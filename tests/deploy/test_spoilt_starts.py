"""Members whose processes were started on a full disk are started again, once there is room."""

from itertools import pairwise

from baton.deploy.cluster.spoilt_starts import FIRST_PAUSE_S, LAST_PAUSE_S, SpoiltStarts


def test_each_is_started_again_once_when_there_is_room() -> None:
    spoilt = SpoiltStarts()
    both = ["decode-0", "prefill-0"]
    assert spoilt.look(both, both, 0.0, full=True) == []
    assert spoilt.look(both, both, 1.0, full=False) == both
    assert spoilt.look(both, both, 2.0, full=False) == []
    assert spoilt.look(both, both, 9e9, full=False) == []


def test_who_is_away_without_a_full_disk_is_left_alone() -> None:
    spoilt = SpoiltStarts()
    assert spoilt.look(["decode-0"], ["decode-0"], 0.0, full=False) == []
    spoilt.look(["decode-0"], ["decode-0"], 1.0, full=True)
    spoilt.look([], [], 2.0, full=True)  # it serves
    assert spoilt.look(["decode-0"], ["decode-0"], 3.0, full=False) == []


def test_one_without_a_process_waits_until_it_has_one() -> None:
    spoilt = SpoiltStarts()
    spoilt.look(["decode-0"], [], 0.0, full=True)
    assert spoilt.look(["decode-0"], [], 1.0, full=False) == []
    assert spoilt.look(["decode-0"], ["decode-0"], 2.0, full=False) == ["decode-0"]


def test_a_disk_that_fills_again_and_again_starts_nothing_in_a_row() -> None:
    spoilt = SpoiltStarts()
    away, now = ["decode-0"], 0.0
    starts: list[float] = []
    while len(starts) < 12:
        spoilt.look(away, away, now, full=True)
        if spoilt.look(away, away, now, full=False):
            starts.append(now)
        now += 1.0
    pauses = [later - sooner for sooner, later in pairwise(starts)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-2:] == [LAST_PAUSE_S, LAST_PAUSE_S]
    spoilt.look([], [], now, full=False)  # it serves: what comes is another fault
    spoilt.look(away, away, now, full=True)
    assert spoilt.look(away, away, now, full=False) == away
