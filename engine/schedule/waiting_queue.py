"""Requests that wait to be admitted, in the order of their turns."""

import bisect
from collections.abc import Iterator

from baton.core.turns import Turn
from baton.engine.request.request import Request


class WaitingQueue:
    """A sorted list: some hundred requests, of which the first is looked at often."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    @property
    def first(self) -> Request | None:
        return self._requests[0] if self._requests else None

    def add(self, request: Request) -> None:
        bisect.insort(self._requests, request, key=_turn)

    def remove(self, request: Request) -> None:
        """Remove `request`, found by its turn: no two are equal."""
        del self._requests[bisect.bisect_left(self._requests, request.turn, key=_turn)]


def _turn(request: Request) -> Turn:
    return request.turn
