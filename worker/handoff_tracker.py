"""Counts the hand-offs of one worker and logs how each ended."""

import logging
import time
from collections import Counter

from baton.core.handoff_ids import HandoffId
from baton.transfer.handoff import Handoff, HandoffState
from baton.worker.transfer_metrics import TransferMetrics

log = logging.getLogger(__name__)

ON_THE_WAY = frozenset(
    {HandoffState.SCHEDULED, HandoffState.RESERVED, HandoffState.WRITING, HandoffState.ACTIVE}
)
"""Moves to these are logged at DEBUG: each line costs as much as a message."""


class HandoffTracker:
    """The open hand-offs of a worker. Used on the asyncio thread."""

    def __init__(self, metrics: TransferMetrics) -> None:
        self._metrics = metrics
        self._writing_since: dict[Handoff, float] = {}  # by `time.monotonic`
        self._states: Counter[HandoffState] = Counter()

    def open(self, name: HandoffId) -> Handoff:
        handoff = Handoff(name, self._moved)
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
        self._time(handoff, to)
        log.log(
            logging.DEBUG if to in ON_THE_WAY else logging.INFO,
            "hand-off moved",
            extra={
                **handoff.name._asdict(),
                "from": source.value,
                "to": to.value,
                "reason": reason,
            },
        )

    def _time(self, handoff: Handoff, to: HandoffState) -> None:
        """Measure how long bytes of a hand-off took. One that fails is not measured."""
        if to is HandoffState.WRITING:
            self._writing_since[handoff] = time.monotonic()
            return
        since = self._writing_since.pop(handoff, None)
        if since is not None and to is HandoffState.COMPLETE:
            self._metrics.observe_writing(time.monotonic() - since)

    def _add(self, state: HandoffState, change: int) -> None:
        self._states[state] += change
        self._metrics.set_handoffs(state, self._states[state])
