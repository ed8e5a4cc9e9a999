"""The stop of a process: SIGINT and SIGTERM as one request for it, and an end at once."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class StopWanted(KeyboardInterrupt):
    """The exception that the first SIGINT or SIGTERM raises in the main thread."""


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise StopWanted at the first SIGINT or SIGTERM inside the context.

    Further signals are ignored while stopping, so that nothing is left half stopped. SIGKILL still
    works: Ray and the workers end with this process.
    """

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


def exit_now(code: int = 0) -> NoReturn:
    """End this process at once. Everything that must be closed is closed.

    The interpreter would free torch's and Ray's modules one by one, which takes one to four seconds
    in which `baton stop` waits.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
