"""One thread a worker that makes progress for channels that make none by themselves."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol

log = logging.getLogger(__name__)

SHORTEST_S, LONGEST_S, SHARE = 50e-6, 500e-6, 1 / 64


def pause_s(still_s: float) -> float:
    """Between two looks at what is under way but has not moved for `still_s`: a share of that, so
    that it adds little to what is waited for. Not less, since a look costs a core, and the
    interpreter lock, that who moves the bytes may need: 6 % of a core over 50 ms, 5 % for good."""
    return min(max(still_s * SHARE, SHORTEST_S), LONGEST_S)


class Work(Enum):
    MOVING = "moving"  # something was done: look again at once
    WAITING = "waiting"  # something is under way elsewhere: look again soon
    NONE = "none"  # do not look until woken


class Polled(Protocol):
    def poll(self) -> Work:
        """On the poller's thread. Does not raise, and returns within milliseconds."""
        ...


class Poller:
    """Sleeps, for good, while nobody has work."""

    def __init__(self, name: str) -> None:
        self._condition = threading.Condition()
        self._polled: set[Polled] = set()
        self._calls: list[Callable[[], None]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self, polled: Polled) -> None:
        """It has work. From any thread."""
        with self._condition:
            self._polled.add(polled)
            self._condition.notify()

    def call(self, fn: Callable[[], None]) -> None:
        """Run `fn` once on the poller's thread, between two looks; here and now once that has
        stopped. From any thread."""
        with self._condition:
            if not self._stopped:
                self._calls.append(fn)
                self._condition.notify()
                return
        self._thread.join()
        fn()

    async def run(self, fn: Callable[[], None]) -> None:
        """As `call`; `fn` is over when it returns."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()

        def call() -> None:
            try:
                fn()
            finally:
                loop.call_soon_threadsafe(over.set)

        self.call(call)
        await over.wait()

    def stop(self) -> None:
        """The thread has ended when it returns. Calls that wait are made first."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        moved_s = time.monotonic()
        while True:
            with self._condition:
                while not (self._polled or self._calls or self._stopped):
                    self._condition.wait()
                    moved_s = time.monotonic()
                calls, self._calls = self._calls, []
                polled, stopped = tuple(self._polled), self._stopped
            for fn in calls:
                fn()
            if stopped:
                return
            found = self._look(polled)
            now = time.monotonic()
            if Work.MOVING in found:
                moved_s = now
            elif polled:
                time.sleep(pause_s(now - moved_s))

    def _look(self, polled: tuple[Polled, ...]) -> set[Work]:
        found: set[Work] = set()
        for one in polled:
            with self._condition:
                self._polled.discard(one)  # before the look: who wakes it meanwhile is heard
            work = one.poll()
            found.add(work)
            if work is not Work.NONE:
                with self._condition:
                    self._polled.add(one)
        return found
