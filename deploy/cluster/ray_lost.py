"""A watchdog for a Ray that ends under this process.

Once Ray's control store is gone, a call to Ray waits for a minute in native code, which handles no
signals and may then end this process without a word. Another thread therefore looks after Ray's
processes. A signal to the whole process group, which ends Ray together with us, is no loss of Ray.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.deploy.cluster.ray_processes import RayProcesses

GRACE_S = 2.0
"""The time that this process has to stop, after a signal that has ended Ray too."""
LOST_GRACE_S = 10.0
"""The time that it has to end by itself, after it has lost Ray without a signal."""
_LOOK_S = 0.2
_SETTLE_S = 0.6  # for a signal that has ended Ray to reach us too
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_OVER = b"\0"  # no signal has this number


class WatchedRay(Protocol):
    """A Ray, as far as its loss can be seen without a call to it."""

    def lost(self) -> str:
        """Name what it has lost; empty while it has all."""
        ...

    def kill(self) -> None:
        """End what is left of it, where it is ours."""
        ...


class RayWatch:
    """The Ray under watch, from its start to its stop.

    Methods may be called on any thread.
    """

    def __init__(self) -> None:
        self._ray: WatchedRay | None = None
        self._begun = False
        self._lost_means = ""
        self._told = threading.Event()

    @property
    def ray(self) -> WatchedRay | None:
        return self._ray

    def begin(self, ray: WatchedRay, lost_means: str) -> None:
        """Watch this Ray. lost_means: what the loss means, after the name of what is lost."""
        self._begun = True
        self._lost_means = lost_means
        self._ray = ray

    def begin_with_what_runs(self) -> None:
        """Watch the processes that run now, unless `begin` was called: Ray is being started."""
        if not self._begun:
            self.begin(RayProcesses(), "while it was being started")

    def end(self) -> None:
        """Watch no more: Ray is about to be stopped. Idempotent."""
        self._ray = None

    def reason(self) -> str:
        """Say which process Ray has lost, and what that means; empty while it has all."""
        ray = self._ray
        lost = "" if ray is None else ray.lost()
        return f"Ray's {lost} has ended, {self._lost_means}" if lost else ""

    def tell(self, reason: str) -> None:
        """Print the reason for the operator, once."""
        if not self._told.is_set():
            self._told.set()
            tell(reason)


def tell(line: str) -> None:
    """Print a line for the operator."""
    print(f"baton: {line}", file=sys.stderr, flush=True)


@contextmanager
def watching_ray(
    watch: RayWatch,
    owner: ProcessSupervisor,
    grace_s: float = GRACE_S,
    lost_grace_s: float = LOST_GRACE_S,
) -> Iterator[None]:
    """Say so when Ray's processes have ended, and end this process if it does not end by itself.

    watch: begun by whoever starts Ray. A SIGINT or SIGTERM that has ended Ray too
    leaves `grace_s`, another loss `lost_grace_s`. Main thread only; signal handlers stay as they
    are.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    over, signalled = threading.Event(), threading.Event()
    grace = (grace_s, lost_grace_s)
    # ANEW: a signal that has come is remembered, and Ray's processes are looked for again.
    watcher = thread(
        lambda: _watch(watch, heard, over, signalled, grace),
        owner,
        OnFailure.ANEW,
        "ray-lost",
        may_return=True,
    )
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        os.write(told, _OVER)
        watcher.join()
        os.close(told)
        os.close(heard)


def _watch(
    watch: RayWatch,
    heard: int,
    over: threading.Event,
    signalled: threading.Event,
    grace: tuple[float, float],
) -> None:
    """grace: seconds after a loss with a signal, and after one without."""
    lost_s: float | None = None
    reason = ""
    while not over.is_set():
        if select.select([heard], [], [], _LOOK_S)[0] and os.read(heard, 1)[0] in _SIGNALS:
            signalled.set()
            watch.begin_with_what_runs()
        if lost_s is None:
            reason = watch.reason()
            lost_s = time.monotonic() if reason else None
            continue
        since_s = time.monotonic() - lost_s
        if signalled.is_set():
            if since_s > grace[0]:
                _end(watch, "stopped: the signal has ended Ray too, so no request could end", 130)
        elif since_s > grace[1]:
            _end(watch, "", 1)
        elif since_s > _SETTLE_S:
            watch.tell(reason)


def _end(watch: RayWatch, words: str, code: int) -> NoReturn:
    ray = watch.ray or RayProcesses()
    ray.kill()
    if words:
        print(words, file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)
