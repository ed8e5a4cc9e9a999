"""A fault at one chosen move of a worker process, which the test names."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from baton.core.handoff_ids import HandoffId
from baton.transfer.handoff import Handoff, HandoffState
from baton.worker.handoff_tracker import HandoffTracker

GO_S = 30.0  # the longest that a test lets a worker stand at its point


class Act(StrEnum):
    """The action of the process after it has told the test that it reached its fault point."""

    KILL = "kill"  # itself
    STOP = "stop"  # itself
    WAIT = "wait"  # until `go`: the test does something to another


@dataclass(frozen=True)
class Point:
    """The first hand-off of this request that comes into `state`."""

    request_id: str
    state: HandoffState
    act: Act


class FaultPoint:
    """Sees every move of a book before anything else can happen in its process."""

    def __init__(self, book: HandoffTracker, tell: Callable[..., None], *, moves: bool) -> None:
        """tell: sends to the test. moves: tell it of every move."""
        self._tell = tell
        self._moves = moves
        self._point: Point | None = None
        self._go = threading.Event()
        inner: Any = book
        self._open, self._moved = inner.open, inner._moved
        inner.open, inner._moved = self._on_open, self._on_move

    def arm(self, point: Point) -> None:
        self._go.clear()
        self._point = point

    def disarm(self) -> None:
        self._point = None
        self.go()

    def go(self) -> None:
        """Let the process go on from its fault point. May be called from any thread."""
        self._go.set()

    def _on_open(self, name: HandoffId) -> Handoff:
        handoff: Handoff = self._open(name)
        self._at(handoff)
        return handoff

    def _on_move(self, handoff: Handoff, source: HandoffState, to: HandoffState, why: str) -> None:
        self._moved(handoff, source, to, why)
        self._at(handoff)

    def _at(self, handoff: Handoff) -> None:
        request_id, attempt = handoff.name
        if self._moves:
            self._tell("moved", request_id, attempt, handoff.state)
        point = self._point
        if point is None or (point.request_id, point.state) != (request_id, handoff.state):
            return
        self._point = None
        self._tell("reached")
        if point.act is Act.WAIT:
            assert self._go.wait(GO_S), "the test never said go"
        else:
            os.kill(os.getpid(), signal.SIGKILL if point.act is Act.KILL else signal.SIGSTOP)
