"""The place where a worker meets its fault while it reads a prefix from another worker."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

from chaos.fault_point import GO_S, Act

from baton.proto import handoff_pb2
from baton.worker.prefix_reader import PrefixReader


class Moment(StrEnum):
    """The progress of the next read at its fault."""

    LENT = "lent"  # the loan is open and nothing has been read
    READING = "reading"  # the reads have begun
    READ = "read"  # everything is here, and the lender has not yet said `held`


class PullPoint:
    """A fault in the next prefix that a worker reads, whatever channel it reads by."""

    def __init__(self, reader: PrefixReader, tell: Callable[..., None]) -> None:
        """tell: sends to the test."""
        self._tell = tell
        self._armed: tuple[Moment, Act] | None = None
        self._go = threading.Event()
        inner: Any = reader
        self._take = inner._take
        inner._take = self._taken

    def arm(self, moment: Moment, act: Act) -> None:
        self._go.clear()
        self._armed = (moment, act)

    def go(self) -> None:
        """Continue. Called on any thread."""
        self._go.set()

    async def _taken(self, reader: Any, lent: handoff_pb2.LentPrefix, reservation: Any) -> None:
        self._at(Moment.LENT)
        await self._take(_Noted(reader, self._at), lent, reservation)
        self._at(Moment.READ)

    def _at(self, moment: Moment) -> None:
        """Block the loop at the armed moment; the poller's thread goes on."""
        if self._armed is None or self._armed[0] is not moment:
            return
        act, self._armed = self._armed[1], None
        self._tell("reached")
        if act is Act.WAIT:
            assert self._go.wait(GO_S), "the test never said go"
        else:
            os.kill(os.getpid(), signal.SIGKILL if act is Act.KILL else signal.SIGSTOP)


class _Noted:
    """A reader that reports when its reads have begun."""

    def __init__(self, reader: Any, at: Callable[[Moment], None]) -> None:
        self._reader = reader
        self._at = at

    async def read(self, segments: Sequence[Any], into: Any, source: Any) -> None:
        reading = asyncio.ensure_future(self._reader.read(segments, into, source))
        try:
            await asyncio.sleep(0)  # `read` wakes the poller's thread, which posts
            self._at(Moment.READING)
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            reading.cancel()
            await asyncio.wait([reading])
            raise
