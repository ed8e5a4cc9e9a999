"""The rows of a step that differ from their requests' last rows by their position alone."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from baton.engine.request.draw import DRAW_RECORD, Draw, DrawRecords
from baton.engine.request.request import Request

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlainGroup:
    """The requests of plain rows, by columns. Steps share it until a request joins or leaves. Made
    by `PlainTable`; nothing in it changes.
    """

    requests: tuple[Request, ...]
    request_ids: tuple[str, ...]
    outputs: tuple[list[int], ...]  # the requests' own, which results are appended to
    draws: tuple[Draw, ...]
    records: DrawRecords  # of `draws`
    stop_ids: frozenset[int]  # tokens that may end any of the answers
    watched: tuple[int, ...]  # indices of rows whose stop checkers see every token
    admissions: Ints  # [n], which of the request's admissions planned the rows
    joins: Ints  # [n], the numbers under which the requests stand in the table
    table_rows: Ints  # [n], rows of the request tables
    slots: Ints  # [n], state slots, which the rows read and write

    def __len__(self) -> int:
        return len(self.requests)

    @cached_property
    def asking(self) -> tuple[tuple[int, Draw], ...]:
        """(index, draw) of those that want log probabilities."""
        return tuple((i, self.draws[i]) for i in np.flatnonzero(self.records["asks"]).tolist())

    def may_end(self, token_ids: list[int]) -> list[int]:
        """Return the rows whose answers may be over with the sampled `token_ids`: those that stop
        checkers have to see. No plain row samples the last token that its answer may have.
        """
        if self.stop_ids.isdisjoint(token_ids):
            return list(self.watched)
        stop_ids = self.stop_ids
        found = [index for index, token in enumerate(token_ids) if token in stop_ids]
        return sorted({*found, *self.watched})


@dataclass(frozen=True)
class PlainRows:
    """The plain rows of one step: each computes its request's newest token and samples the one
    after it.
    """

    group: PlainGroup
    starts: Ints  # [n], tokens computed before this step
    positions: Ints  # [n], among the output, of the tokens that are sampled

    def __len__(self) -> int:
        return len(self.group)


_NONE = np.empty(0, np.int64)
NO_GROUP = PlainGroup(
    requests=(),
    request_ids=(),
    outputs=(),
    draws=(),
    records=np.empty(0, DRAW_RECORD),
    stop_ids=frozenset(),
    watched=(),
    admissions=_NONE,
    joins=_NONE,
    table_rows=_NONE,
    slots=_NONE,
)
NO_PLAIN = PlainRows(NO_GROUP, _NONE, _NONE)
