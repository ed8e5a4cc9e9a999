"""A watchdog for signals that end Ray together with this process.

A signal to the whole process group ends Ray's processes too. Every later call to Ray would then
wait half a minute for processes that are gone, partly in native code that handles no signals.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.deploy.cluster.ray_processes import RayProcesses

GRACE_S = 2.0
_LOOK_S = 0.2
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
_OVER = b"\0"  # no signal has this number


@contextmanager
def end_if_ray_is_lost(owner: ProcessSupervisor, grace_s: float = GRACE_S) -> Iterator[None]:
    """End this process if SIGINT or SIGTERM has ended Ray's processes too.

    Applies inside the context, `grace_s` after Ray's processes have ended. Main thread only; signal
    handlers stay as they are.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    over, signalled = threading.Event(), threading.Event()
    # ANEW: a signal that has come is remembered, and Ray's processes are looked for again.
    watcher = thread(
        lambda: _watch(heard, over, signalled, grace_s),
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


def _watch(heard: int, over: threading.Event, signalled: threading.Event, grace_s: float) -> None:
    while not signalled.is_set() and (number := os.read(heard, 1)) != _OVER:
        if number[0] in _SIGNALS:
            signalled.set()
    if over.is_set():
        return
    ray = RayProcesses()
    lost_s: float | None = None
    while not over.wait(_LOOK_S):
        if lost_s is None and ray.lost():
            lost_s = time.monotonic()
        if lost_s is not None and time.monotonic() - lost_s > grace_s:
            _end(ray)


def _end(ray: RayProcesses) -> None:
    ray.kill()
    print("stopped: the signal has ended Ray too, so no request could end", file=sys.stderr)
    sys.stderr.flush()
    os._exit(130)
