"""Counts the hand-offs of one worker and logs every move."""

import logging
from collections import Counter

from baton.transfer.handoff import Handoff, HandoffState
from baton.worker.metrics import WorkerMetrics

log = logging.getLogger(__name__)


class HandoffTracker:
    """The open hand-offs of a worker. Used on the asyncio thread."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._states: Counter[HandoffState] = Counter()

    def open(self, request_id: str, attempt: int) -> Handoff:
        handoff = Handoff(request_id, attempt, self._moved)
        self._add(handoff.state, 1)
        return handoff

    def close(self, handoff: Handoff) -> None:
        """Forget a hand-off that has made its last move. Called once for each."""
        self._add(handoff.state, -1)

    @property
    def counts(self) -> dict[str, int]:
        return {state.value: count for state, count in self._states.items() if count}

    def _moved(self, handoff: Handoff, source: HandoffState, to: HandoffState, reason: str) -> None:
        self._metrics.count_move(source, to)
        self._add(source, -1)
        self._add(to, 1)
        log.info(
            "hand-off moved",
            extra={
                "request_id": handoff.request_id,
                "attempt": handoff.attempt,
                "from": source.value,
                "to": to.value,
                "reason": reason,
            },
        )

    def _add(self, state: HandoffState, change: int) -> None:
        self._states[state] += change
        self._metrics.set_handoffs(state, self._states[state])
