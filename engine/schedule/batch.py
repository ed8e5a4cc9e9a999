"""The host-side plan of one step. Nothing in it changes once it is made.

Results are processed from what is recorded here, never from fields of a request: by then the
request may have gone on, stopped, or been preempted.
"""

from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from baton.core.sampling_params import SamplingParams
from baton.engine.memory.table_changes import NO_ENTRIES, TableEntries


class Draw(NamedTuple):
    """The sampling of a token from the logits of its row's last token."""

    sampling: SamplingParams
    short: bool  # its stop tokens must not come yet (min_tokens)
    allowed: "array[int] | None"  # a mask of the tokens that may come, 64 a word; None: all

    @property
    def plain(self) -> bool:
        """True if it takes the likeliest token of the logits as they are, and no more is asked."""
        return self.sampling.plain and not self.short and self.allowed is None


class Scores(NamedTuple):
    """Prompt tokens whose logprobs are wanted. Position 0 has none: nothing precedes it."""

    start: int  # position of targets[0]
    targets: tuple[int, ...]  # the prompt's token ids from `start` on
    top: int  # alternatives a position
    asked: tuple[int, ...]  # other tokens whose logprobs each position wants

    @property
    def logits(self) -> int:
        """Positions that have logits."""
        return len(self.targets) - (self.start == 0)

    @property
    def first_logit(self) -> int:
        """Absolute position of the token whose logits score the first such target."""
        return max(self.start, 1) - 1


class Tracked(NamedTuple):
    """A snapshot that a step writes: the row's state after `depth` tokens."""

    depth: int  # absolute tokens
    slot: int  # state slot, owner TRACK, which no other step writes
    opportunistic: bool  # the first to be evicted from the cache


class Row(NamedTuple):
    """One request's part of a step: tokens [start, end), which the request tables have."""

    serial: int  # the request's
    admission: int  # which of the request's admissions planned it: preemption makes another
    start: int  # tokens computed before this step
    end: int
    # State slots. A row reads 0 where start is 0; a snapshot's slot after a prefix hit, and after a
    # decode row that was tracked, which writes its snapshot's slot in place of the request's own.
    read_slot: int
    write_slot: int
    table_row: int  # its row of the request tables
    reaches_target: bool  # everything that was to be computed is, with this row
    draw: Draw | None
    scores: Scores | None
    tracked: tuple[Tracked, ...] = ()
    held: str = ""  # the request's name, where this is the last chunk of one that will be held
    held_pages: tuple[int, ...] = ()  # of such a request, in token order
    position: int = 0  # among the output, of the token that it samples


@dataclass(frozen=True)
class Batch:
    """The rows of one step, those that decode first. Made by the scheduler."""

    sequence: int  # of this forward: 1, 2, 3 ...
    rows: tuple[Row, ...]
    decode_rows: int
    entries: TableEntries = NO_ENTRIES  # of request tables, changed since these rows' last steps

    @cached_property
    def draws(self) -> tuple[tuple[int, Draw], ...]:
        """(row index, draw) of each row that samples."""
        return tuple((i, row.draw) for i, row in enumerate(self.rows) if row.draw is not None)

    @cached_property
    def special_draws(self) -> tuple[tuple[int, Row, Draw], ...]:
        """(index among the draws, row, draw) of each draw that is not plain."""
        rows = self.rows
        return tuple((i, rows[index], d) for i, (index, d) in enumerate(self.draws) if not d.plain)

    @property
    def last_chunks(self) -> tuple[Row, ...]:
        """Rows whose state a hand-off waits for."""
        return tuple(row for row in self.rows[self.decode_rows :] if row.held)

    @cached_property
    def scores(self) -> tuple[tuple[int, Scores], ...]:
        """(row index, scores) of each row that scores its prompt."""
        return tuple((i, row.scores) for i, row in enumerate(self.rows) if row.scores is not None)
