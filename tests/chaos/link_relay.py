"""Links with a delay: pairs of taps, between which this process carries frames, each a while later.

`python link_relay.py MILLISECONDS NEAR:FAR...` makes the taps, says `ready`, and runs until it is
killed; the taps then go. The kernel here has no netem, which would delay them by itself.
"""

import errno
import fcntl
import os
import selectors
import struct
import sys
import time
from collections import deque

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
LONGEST = 65536
MOST_WAITING = 8192
"""Frames of one direction; further ones are dropped, as a full queue of a switch does."""


class Direction:
    """Frames from one tap to the other, in their order."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._waiting: deque[tuple[float, bytes]] = deque()  # when each is due, and the frame

    def read(self, due: float) -> bool:
        """Take what the source has. Return False if it is gone with its namespace."""
        try:
            while frame := os.read(self._source, LONGEST):
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append((due, frame))
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno != errno.EBADFD
        return True

    def write(self, now: float) -> float:
        """Write what is due; return when the next frame is, infinity if none waits."""
        while self._waiting:
            due, frame = self._waiting[0]
            if due > now:
                return due
            self._waiting.popleft()
            try:
                os.write(self._target, frame)
            except OSError:  # the link is down, or its queue is full: the frame is lost
                continue
        return float("inf")


def tap(name: str) -> int:
    """Return a new tap, which lives as long as this process."""
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return handle


def main(delay_s: float, pairs: list[tuple[str, str]]) -> None:
    selector = selectors.DefaultSelector()
    directions: list[Direction] = []
    for near, far in pairs:
        ends = tap(near), tap(far)
        for source, target in (ends, ends[::-1]):
            directions.append(Direction(source, target))
            selector.register(source, selectors.EVENT_READ, directions[-1])
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        due = min(each.write(now) for each in directions)
        wait = None if due == float("inf") else max(0.0, due - time.monotonic())
        for key, _ in selector.select(wait):
            if not key.data.read(time.monotonic() + delay_s):
                selector.unregister(key.fileobj)


if __name__ == "__main__":
    main(float(sys.argv[1]) / 1000, [(a, b) for a, b in (w.split(":") for w in sys.argv[2:])])
