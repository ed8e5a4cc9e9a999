"""One thread of a worker that makes progress for channels that make none by themselves."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.transfer.errors import ChannelError

log = logging.getLogger(__name__)

SHORTEST_S, LONGEST_S, SHARE = 50e-6, 500e-6, 1 / 64


def pause_s(still_s: float) -> float:
    """Return the pause between two polls when nothing has moved for `still_s` seconds.

    It is a share of that time, so it adds little to the wait. It has a lower bound because a poll
    takes a core and the interpreter lock, which the thread that moves the bytes may need. Polling
    costs 6 % of a core over 50 ms, and 5 % in the long run.
    """
    return min(max(still_s * SHARE, SHORTEST_S), LONGEST_S)


class Work(Enum):
    MOVING = "moving"  # something was done: poll again at once
    WAITING = "waiting"  # something is under way elsewhere: poll again soon
    NONE = "none"  # do not poll until woken


class Polled(Protocol):
    def poll(self) -> Work:
        """Do what can be done now, within milliseconds. Called on the poller's thread.

        Whatever it raises, `fail` follows.
        """
        ...

    def fail(self, why: ChannelError) -> None:
        """Answer all who wait for this one with the reason. Called on the poller's thread, after a
        poll that has raised; there is no other poll until somebody wakes it. Does not raise.
        """
        ...


class Poller:
    """A thread that polls those who have work, and sleeps while nobody has."""

    def __init__(
        self, name: str, owner: ProcessSupervisor, begin: Callable[[], None] = lambda: None
    ) -> None:
        """begin: called first on the thread."""
        self._begin = begin
        self._condition = threading.Condition()
        self._polled: set[Polled] = set()
        self._calls: list[Callable[[], None]] = []
        self._stopped = False
        # END: no transfer would move any more, nor its end be seen.
        self._thread = thread(self._run, owner, OnFailure.END, name, may_return=True)

    def wake(self, polled: Polled) -> None:
        """Poll `polled` until it has no more work. Called on any thread."""
        with self._condition:
            self._polled.add(polled)
            self._condition.notify()

    def call(self, fn: Callable[[], None]) -> None:
        """Run `fn` once on the poller's thread, between two polls. Called on any thread.

        After `stop`, `fn` runs on the caller's thread before this returns.
        """
        with self._condition:
            if not self._stopped:
                self._calls.append(fn)
                self._condition.notify()
                return
        self._thread.join()
        fn()

    async def run(self, fn: Callable[[], None]) -> None:
        """Run `fn` as `call` does, and return when it has ended."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def call() -> None:
            try:
                fn()
            finally:  # `_call` reports what it raises
                loop.call_soon_threadsafe(over.set)

        self.call(call)
        await over.wait()

    def stop(self) -> None:
        """Make the calls that wait, and end the thread."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._poll_on()
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Make the calls that wait: the thread ends, and makes none any more."""
        with self._condition:
            self._stopped = True
            calls, self._calls = self._calls, []
        for fn in calls:
            _call(fn)

    def _poll_on(self) -> None:
        self._begin()
        moved_s = time.monotonic()
        while True:
            with self._condition:
                while not (self._polled or self._calls or self._stopped):
                    self._condition.wait()
                    moved_s = time.monotonic()
                calls, self._calls = self._calls, []
                polled, stopped = tuple(self._polled), self._stopped
            for fn in calls:
                _call(fn)
            if stopped:
                return
            found = self._poll(polled)
            now = time.monotonic()
            if Work.MOVING in found:
                moved_s = now
            elif polled:
                time.sleep(pause_s(now - moved_s))

    def _poll(self, polled: tuple[Polled, ...]) -> set[Work]:
        found: set[Work] = set()
        for one in polled:
            with self._condition:
                self._polled.discard(one)  # before the poll, so that a `wake` during it counts
            work = _polled(one)
            found.add(work)
            if work is not Work.NONE:
                with self._condition:
                    self._polled.add(one)
        return found


def _polled(one: Polled) -> Work:
    """Poll `one`. An error ends what it does, and nobody else's."""
    try:
        return one.poll()
    except ChannelError as error:
        one.fail(error)
    except Exception as error:  # a library may raise anything, and a fault of ours is one, too
        log.exception("a transfer ends: a poll of %s has failed", type(one).__name__)
        one.fail(ChannelError(f"the channel has failed: {type(error).__name__}: {error}"))
    return Work.NONE


def _call(fn: Callable[[], None]) -> None:
    """Run `fn`. An error must not end the thread, which others need."""
    try:
        fn()
    except Exception:  # as in `_polled`
        log.exception("a call between two polls has failed")
