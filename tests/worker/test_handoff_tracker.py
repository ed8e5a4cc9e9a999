"""The log says how each hand-off ended, and not each step of the way."""

import logging

import pytest

from baton.core.handoff_ids import HandoffId
from baton.core.role import Role
from baton.transfer.handoff import HandoffState
from baton.worker.handoff_tracker import HandoffTracker
from baton.worker.metrics import WorkerMetrics

S = HandoffState


@pytest.mark.parametrize(
    ("way", "shown"),
    [
        ((S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE, S.ACTIVE), ["complete"]),
        ((S.SCHEDULED, S.RESERVED, S.WRITING, S.FAILED), ["failed"]),
        ((S.CANCELLED,), ["cancelled"]),
        ((S.SCHEDULED, S.RESERVED, S.QUARANTINED, S.EXPIRED), ["quarantined", "expired"]),
    ],
    ids=["handed over", "failed", "cancelled", "in quarantine"],
)
def test_an_end_is_logged_and_steps_of_the_way_only_for_debugging(
    way: tuple[HandoffState, ...], shown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="baton")
    tracker = HandoffTracker(WorkerMetrics("d0", Role.DECODE).transfers)
    handoff = tracker.open(HandoffId("r", 1))
    for state in way:
        handoff.move(state, "because")
    tracker.close(handoff)
    moves = [(each.levelno, vars(each)["to"]) for each in caplog.records]
    assert [to for _, to in moves] == [state.value for state in way]
    assert [to for level, to in moves if level >= logging.INFO] == shown
    assert tracker.counts == {}
