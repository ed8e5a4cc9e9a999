"""Ctrl-C and SIGTERM as one wish to stop."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopWanted(KeyboardInterrupt):
    """Raised in the main thread, wherever it is, by the first signal of either kind."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Inside, SIGINT and SIGTERM raise StopWanted once; while stopping, further ones are ignored,
    so that nothing is left half stopped (SIGKILL remains: Ray and the workers end with us)."""

    def raise_once(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise StopWanted

    before = {each: signal.signal(each, raise_once) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
