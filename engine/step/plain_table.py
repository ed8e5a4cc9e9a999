"""The running requests whose next rows are plain."""

import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np

from baton.engine.request.draw import DRAW_RECORD, Draw
from baton.engine.request.request import Request, RequestLengths
from baton.engine.step.batch import Row
from baton.engine.step.plain_rows import NO_GROUP, NO_PLAIN, PlainGroup, PlainRows

_ADMISSION, _JOIN, _TABLE_ROW, _SLOT, _START, _POSITION, _END = range(7)
_GROUP = slice(_ADMISSION, _START)  # what stays
_MOVING = slice(_START, _END)  # what each step advances by one
_SIZE = 64  # places at first


class PlainTable:
    """A table of requests by columns, in no order: a request that leaves gives its place to the
    last. A step whose requests are those of the last step costs two additions of arrays; only
    requests that join and leave are looked at one by one.

    While a request is here, the columns alone know its lengths, and `Request.lengths` reads them.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._request_ids: list[str] = []
        self._outputs: list[list[int]] = []
        self._draws: list[Draw] = []
        self._stop_ids: Counter[frozenset[int]] = Counter()  # how many requests have them
        self._watched = 0  # requests whose stop checkers see every token
        self._columns = np.zeros((_END + 1, _SIZE), np.int64)
        self._records = np.zeros(_SIZE, DRAW_RECORD)
        # By row of the request tables: the number of the request's joining, 0 where it is not here,
        # and what is settled.
        self._joined = np.zeros(_SIZE, np.int64)
        self._settled = np.zeros(_SIZE, np.int64)
        self._joins = 0
        self._steps_left = sys.maxsize  # until the first request's plain rows end, at least
        self._group: PlainGroup | None = NO_GROUP  # None: requests have joined or left since then

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Request, draw: Draw, end: int) -> None:
        """Add `request`, whose rows that begin below `end` are plain and sample by `draw`."""
        place, row, lengths = len(self._requests), request.table_row, request.lengths
        self._make_room(place, row)
        request.plain_columns, request.plain_place = self, place
        self._requests.append(request)
        self._request_ids.append(request.request_id)
        self._outputs.append(request.output)
        self._draws.append(draw)
        self._stop_ids[request.stopper.stop_ids] += 1
        self._watched += request.stopper.watches
        self._joins += 1
        self._columns[:, place] = (
            request.admissions, self._joins, row, request.slot, lengths.computed, lengths.sampled,
            end,
        )  # fmt: skip
        self._records[place] = draw.record
        self._joined[row] = self._joins
        self._settled[row] = lengths.settled
        self._steps_left = min(self._steps_left, end - lengths.computed)
        self._group = None

    def discard(self, request: Request) -> None:
        """Remove `request`, if it is here."""
        place = request.plain_place
        if place < 0:
            return
        request.leave_columns()
        self._joined[request.table_row] = 0
        stop_ids = request.stopper.stop_ids
        self._stop_ids[stop_ids] -= 1
        if not self._stop_ids[stop_ids]:
            del self._stop_ids[stop_ids]
        self._watched -= request.stopper.watches
        end = len(self._requests) - 1
        last = self._requests.pop(), self._request_ids.pop(), self._outputs.pop(), self._draws.pop()
        if place != end:
            self._requests[place], self._request_ids[place] = last[:2]
            self._outputs[place], self._draws[place] = last[2:]
            self._columns[:, place] = self._columns[:, end]
            self._records[place] = self._records[end]
            self._requests[place].plain_place = place
        self._group = None

    def ended(self) -> list[Request]:
        """Return the requests whose plain rows end here. Each is to be extended or discarded before
        `take`.
        """
        if self._steps_left > 0:
            return []
        columns = self._columns[:, : len(self._requests)]
        left = columns[_END] - columns[_START]
        self._steps_left = int(left.min(initial=sys.maxsize, where=left > 0))
        return [self._requests[place] for place in np.flatnonzero(left <= 0).tolist()]

    def extend(self, request: Request, computed: int, end: int) -> None:
        """Let the next rows of `request`, of which so much is computed, be plain too where they
        begin below `end`."""
        self._columns[_END, request.plain_place] = end
        self._steps_left = min(self._steps_left, end - computed)

    def draw(self, request: Request) -> Draw:
        """Return how the rows of `request` sample."""
        return self._draws[request.plain_place]

    def has_row(self, table_row: int) -> bool:
        """Return true if a request here has that row of the request tables."""
        return table_row < self._joined.shape[0] and bool(self._joined[table_row])

    def take(self) -> PlainRows:
        """Plan the next row of each request."""
        count = len(self._requests)
        if not count:
            return NO_PLAIN
        moving = self._columns[_MOVING, :count]
        rows = PlainRows(self._group or self._grouped(), *moving.copy())
        moving += 1
        self._steps_left -= 1
        return rows

    def settle(self, rows: PlainRows) -> list[int]:
        """Note that the step of `rows` is over. Return those rows, by index, whose requests have
        left the table since it was planned; nothing is noted of them.
        """
        group = rows.group
        at, settled = group.table_rows, rows.starts + 1
        if group is self._group:
            self._settled[at] = settled
            return []
        here = self._joined[at] == group.joins
        self._settled[at] = np.where(here, settled, self._settled[at])
        return np.flatnonzero(~here).tolist()

    def check(self, in_flight: Iterable[Row]) -> list[str]:
        """Describe what differs between the table and its requests. [] when all is well.

        in_flight: the rows whose results are not processed.
        """
        sampling: Counter[int] = Counter()  # tokens by serial
        computing: Counter[tuple[int, int]] = Counter()  # tokens by serial and admission
        for row in in_flight:
            sampling[row.serial] += row.draw is not None
            computing[row.serial, row.admission] += row.end - row.start - row.overlap_slack
        findings = []
        for place, request in enumerate(self._requests):
            drawn = len(request.output) + sampling[request.serial]
            computed = len(request.spec.prompt_ids) + drawn - 1
            expected = (
                request.admissions, int(self._joined[request.table_row]), request.table_row,
                request.slot, computed, drawn,
                computed - computing[request.serial, request.admissions],
            )  # fmt: skip
            noted = *self._columns[:_END, place].tolist(), request.lengths.settled
            if request.plain_place != place or request.state_slot != request.slot:
                findings.append(f"request {request.request_id} is not at its place among the plain")
            if noted != expected:
                findings.append(
                    f"request {request.request_id} has plain rows of {noted}, not of {expected}"
                )
        return findings

    def _grouped(self) -> PlainGroup:
        """Make the columns of the requests that are here now."""
        count = len(self._requests)
        watched = enumerate(self._requests) if self._watched else ()
        self._group = PlainGroup(
            tuple(self._requests),
            tuple(self._request_ids),
            tuple(self._outputs),
            tuple(self._draws),
            self._records[:count].copy(),
            frozenset().union(*self._stop_ids),
            tuple(place for place, request in watched if request.stopper.watches),
            *self._columns[_GROUP, :count].copy(),
        )
        return self._group

    def read_lengths(self, request: Request, into: RequestLengths) -> None:
        """Write the lengths of `request`, which is here, into its copy of them."""
        into.computed, into.sampled = self._columns[_MOVING, request.plain_place].tolist()
        # A row of it that is not plain may have been settled after it joined.
        into.settled = max(into.settled, int(self._settled[request.table_row]))

    def _make_room(self, place: int, row: int) -> None:
        """Let the columns have `place`, and what is kept by table row have `row`."""
        if place == self._records.shape[0]:
            self._columns = np.concatenate((self._columns, np.zeros_like(self._columns)), axis=1)
            self._records = np.concatenate((self._records, np.zeros_like(self._records)))
        while row >= self._joined.shape[0]:
            self._joined = np.concatenate((self._joined, np.zeros_like(self._joined)))
            self._settled = np.concatenate((self._settled, np.zeros_like(self._settled)))
