"""The running requests whose next rows are plain."""

from itertools import count

import numpy as np

from baton.engine.schedule.draw import DRAW_RECORD, Draw
from baton.engine.schedule.plain_rows import NO_PLAIN, PlainRows
from baton.engine.schedule.request import Request

_ADMISSION, _TABLE_ROW, _SLOT, _START, _POSITION, _END = range(6)
_MOVING = slice(_START, _END)  # what each step advances by one


class PlainTable:
    """A table of requests by columns, in no order: a request that leaves gives its place to the
    last. A step whose requests are those of the last step costs little more than their number of
    additions; only requests that join and leave are looked at one by one.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._draws: list[Draw] = []
        self._columns = np.zeros((6, 64), np.int64)
        self._records = np.zeros(64, DRAW_RECORD)
        self._last = NO_PLAIN  # the rows of the last step
        self._changed = False  # requests have joined or left since then

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, draw: Draw, end: int) -> None:
        """Add `request`, whose rows that begin below `end` are plain and sample by `draw`."""
        place = len(self._requests)
        if place == self._records.shape[0]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
            self._records = np.concatenate((self._records, np.zeros_like(self._records)))
        request.plain_place = place
        self._requests.append(request)
        self._draws.append(draw)
        self._columns[:, place] = (
            request.admissions, request.table_row, request.slot, request.computed, request.drawn,
            end,
        )  # fmt: skip
        self._records[place] = draw.record
        self._changed = True

    def discard(self, request: Request) -> None:
        """Remove `request`, if it is here."""
        place = request.plain_place
        if place < 0:
            return
        request.plain_place = -1
        last, draw = self._requests.pop(), self._draws.pop()
        if last is not request:
            end = len(self._requests)
            self._requests[place], self._draws[place] = last, draw
            self._columns[:, place] = self._columns[:, end]
            self._records[place] = self._records[end]
            last.plain_place = place
        self._changed = True

    def drop_ended(self) -> None:
        """Remove the requests whose next row is not plain any more."""
        columns = self._columns[:, : len(self._requests)]
        ended = np.flatnonzero(columns[_START] >= columns[_END])
        for request in [self._requests[place] for place in ended.tolist()]:
            self.discard(request)

    def take(self) -> PlainRows:
        """Plan the next row of each request."""
        if not self._requests:
            return NO_PLAIN
        held = self._columns[:, : len(self._requests)]
        columns, last = held.copy(), self._last
        if self._changed:
            parts = tuple(self._requests), tuple(self._draws), self._records[: len(self)].copy()
            self._changed = False
        else:
            parts = last.requests, last.draws, last.records
        self._last = PlainRows(*parts, *columns[:_END])
        held[_MOVING] += 1
        for request in self._requests:
            request.computed += 1
            request.pending += 1
        return self._last

    def check(self) -> list[str]:
        """Describe what differs between the table and its requests. [] when all is well."""
        findings = []
        for place, request in zip(count(), self._requests, strict=False):
            expected = (
                request.admissions, request.table_row, request.slot, request.computed,
                request.drawn,
            )  # fmt: skip
            noted = tuple(self._columns[:_END, place].tolist())
            if request.plain_place != place or request.state_slot != request.slot:
                findings.append(f"request {request.request_id} is not at its place among the plain")
            if noted != expected:
                findings.append(
                    f"request {request.request_id} has plain rows of {noted}, not of {expected}"
                )
        return findings
