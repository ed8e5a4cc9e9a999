"""A thread for copies beside the engine's, in the order of the calls."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from baton.core.supervised import submit
from baton.core.thread_name import show_name

log = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""The time that copies which were told to stop have to end."""


class Copy:
    """A copy under way."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._stop = threading.Event()
        self.done: Future[float | None] = Future()
        """Its seconds; None where it was stopped before its end."""

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Let it end before its end, soon."""
        self._stop.set()


class CopyThread:
    """The thread, which begins with the first copy."""

    def __init__(self, name: str, begin: Callable[[], None] = lambda: None) -> None:
        """begin: called on the thread before anything else."""
        self._name = name
        self._begin = begin
        self._pool = ThreadPoolExecutor(1, name, initializer=self._start)
        self._newest: Copy | None = None

    def run(
        self, nbytes: int, work: Callable[[Copy], float | None], after: Callable[[], None]
    ) -> Copy:
        """Let `work` copy `nbytes`; it returns what `Copy.done` says. after: called on some thread
        at the end, however it ends."""
        copy = Copy(nbytes)
        try:
            copy.done = submit(self._pool, work, copy)
        except RuntimeError as error:  # the thread could not begin, as without memory for a stream
            copy.done.set_exception(error)
        copy.done.add_done_callback(lambda _: after())
        self._newest = copy
        return copy

    def close(self) -> None:
        """Take nothing more, and wait a while for the end of what was begun."""
        self._pool.shutdown(wait=False)
        if self._newest is not None and wait([self._newest.done], _CLOSE_S).not_done:
            log.warning("copies on the thread %s have not ended in %g s", self._name, _CLOSE_S)

    def _start(self) -> None:
        show_name(self._name)
        self._begin()
