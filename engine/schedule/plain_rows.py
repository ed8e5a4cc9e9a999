"""The rows of a step that differ from their requests' last rows by their position alone."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton.engine.schedule.draw import DRAW_RECORD, Draw, DrawRecords
from baton.engine.schedule.request import Request

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PlainRows:
    """The plain rows of one step, by columns: each computes its request's newest token and samples
    the one after it. Made by `PlainTable`; nothing in it changes.
    """

    requests: tuple[Request, ...]
    draws: tuple[Draw, ...]
    records: DrawRecords  # of `draws`
    admissions: Ints  # [n], which of the request's admissions planned the row
    table_rows: Ints  # [n], rows of the request tables
    slots: Ints  # [n], state slots, which the rows read and write
    starts: Ints  # [n], tokens computed before this step
    positions: Ints  # [n], among the output, of the tokens that are sampled

    def __len__(self) -> int:
        return len(self.requests)


_NONE = np.empty(0, np.int64)
NO_PLAIN = PlainRows((), (), np.empty(0, DRAW_RECORD), _NONE, _NONE, _NONE, _NONE, _NONE)
