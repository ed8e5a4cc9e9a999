"""The host-side plan of one step. Nothing in it changes once it is made.

Results are processed from what is recorded here, never from fields of a request: by then the
request may have gone on, stopped, or been preempted.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from baton.core.drafts import DraftSource
from baton.engine.cache.prefix_node import Snapshot
from baton.engine.memory.table_changes import NO_ENTRIES, TableEntries
from baton.engine.request.draw import DRAW_RECORD, Draw, DrawRecords
from baton.engine.settings.choices import WINDOWS
from baton.engine.step.plain_rows import NO_PLAIN, Ints, PlainRows

UNBOUNDED = 1 << 40


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
    tracked: tuple[Snapshot, ...] = ()  # that it writes
    parks: str = ""  # the request's name, where this is the last chunk of one that will be held
    parked_pages: tuple[int, ...] = ()  # of such a request, in token order
    position: int = 0  # among the output, of the token that it samples
    # Guesses of the tokens that follow the newest: the row verifies them, and samples behind each
    # of them. `end` counts them, and a snapshot among them has a slot beside `write_slot`.
    drafts: tuple[int, ...] = ()
    draft_draws: tuple[Draw, ...] = ()  # one behind each draft
    draft_sources: tuple[DraftSource, ...] = ()  # of each draft
    guesses: int = 0  # drafts that the device may guess, at most; then `drafts` is empty
    depth: int = 0  # of guesses that are a tree; 0: they follow one another
    # Tokens by which `start` and `position` may be more: drafts of the step before, which was not
    # over when this one was planned. `end` counts them.
    overlap_slack: int = 0
    room: int = UNBOUNDED  # tokens of the sequence that may be computed: drafts past it are dropped

    @property
    def most_drafts(self) -> int:
        """Drafts that it verifies, at most."""
        return len(self.drafts) or self.guesses

    @property
    def most_accepted(self) -> int:
        """Drafts of it that are right, at most."""
        return min(self.most_drafts, self.depth) if self.depth else self.most_drafts

    def sources(self, count: int) -> tuple[DraftSource, ...]:
        """Return who guessed the first `count` of its drafts: the device, those of no source."""
        return self.draft_sources[:count] or (DraftSource.NGRAM,) * count

    @property
    def layered(self) -> int:
        """Drafts that the model's own layer is to guess, at most."""
        return self.guesses if self.draft_sources[:1] == (DraftSource.MTP,) else 0

    @property
    def verifies(self) -> bool:
        """True if only the step knows where it begins or ends: it writes its request's own slot,
        and a snapshot beside it.
        """
        return self.most_drafts + self.overlap_slack > 0

    @property
    def places(self) -> int:
        """Tokens of it in the forward, at least. A row that may begin at several places needs a
        window: there the device decides whether it takes a snapshot, and whether it computes.
        """
        return max(1 + self.most_drafts, 2 if self.overlap_slack else 1)

    def accepted(self, count: int, start: int, position: int) -> "tuple[Row, ...]":
        """Return the decode rows that computing the first `count` of its tokens one by one would
        have been.

        start: tokens that were computed before it. position: of the first token that it samples.
        """
        rows = []
        for place in range(count):
            end = start + place + 1
            rows.append(
                self._replace(
                    start=end - 1,
                    end=end,
                    read_slot=self.write_slot if place else self.read_slot,
                    tracked=tuple(tracked for tracked in self.tracked if tracked.depth == end),
                    position=position + place,
                    drafts=(),
                    draft_draws=(),
                    draft_sources=(),
                    guesses=0,
                    depth=0,
                    overlap_slack=0,
                )
            )
        return tuple(rows)


class Draws(NamedTuple):
    """The D tokens that a step samples, in the order of its rows, by columns."""

    rows: Ints  # [D], of the step
    table_rows: Ints  # [D], rows of the request tables
    records: DrawRecords  # [D]
    each: tuple[Draw, ...]


@dataclass(frozen=True)
class Batch:
    """The rows of one step: plain ones, others that decode, then prompts. Made by the scheduler."""

    sequence: int  # of this forward: 1, 2, 3 ...
    rows: tuple[Row, ...]  # all but the plain ones; those that decode first
    decode_rows: int  # the plain ones included
    entries: TableEntries = NO_ENTRIES  # of request tables, changed since these rows' last steps
    plain: PlainRows = NO_PLAIN

    @property
    def decoding(self) -> tuple[Row, ...]:
        """The rows that decode and are not plain."""
        return self.rows[: self.decode_rows - len(self.plain)]

    @property
    def prompts(self) -> tuple[Row, ...]:
        """The rows that do not decode, the last of the step."""
        return self.rows[self.decode_rows - len(self.plain) :]

    @cached_property
    def window(self) -> int:
        """Tokens of each decoding row in the forward, plain ones too, the last ones padding where
        a row has fewer: a size that steps are kept for.
        """
        most = max((row.places for row in self.decoding), default=1)
        return next(size for size in WINDOWS if size >= most)

    @cached_property
    def layered(self) -> bool:
        """True if the model's own layer is to guess drafts of any row."""
        return any(row.layered for row in self.decoding)

    @cached_property
    def columns(self) -> Ints:
        """[5, rows] of all rows: start, end, read slot, write slot, row of the request tables."""
        starts, group = self.plain.starts, self.plain.group
        columns = np.stack((starts, starts + 1, group.slots, group.slots, group.table_rows))
        if not self.rows:
            return columns
        others = [(r.start, r.end, r.read_slot, r.write_slot, r.table_row) for r in self.rows]
        return np.concatenate((columns, np.array(others, np.int64).T), axis=1)

    @cached_property
    def draws(self) -> Draws:
        """The tokens that the step samples; each plain row samples one."""
        group, first = self.plain.group, len(self.plain)
        found = [(first + i, row) for i, row in enumerate(self.rows) if row.draw is not None]
        drawn = tuple(row.draw for _, row in found if row.draw is not None)
        rows, table_rows, records = np.arange(first), group.table_rows, group.records
        if found:
            rows = np.concatenate((rows, [index for index, _ in found]))
            table_rows = np.concatenate((table_rows, [row.table_row for _, row in found]))
            records = np.empty(len(rows), DRAW_RECORD)
            records[:first] = group.records
            records[first:] = [draw.record for draw in drawn]
        return Draws(rows, table_rows, records, (*group.draws, *drawn))

    @cached_property
    def asking(self) -> tuple[tuple[int, Draw], ...]:
        """(index, draw) of the draws that want log probabilities."""
        others = [row.draw for row in self.rows if row.draw is not None]
        wanted = enumerate(others, len(self.plain))
        more = tuple((i, draw) for i, draw in wanted if draw.sampling.logprobs is not None)
        return self.plain.group.asking + more

    @cached_property
    def all_rows(self) -> tuple[Row, ...]:
        """The rows of the step one by one, in order: for those who look at each."""
        return (*map(self.plain_row, range(len(self.plain))), *self.rows)

    def plain_row(self, index: int) -> Row:
        """Return a plain row by itself."""
        plain, group = self.plain, self.plain.group
        request, start, slot = group.requests[index], int(plain.starts[index]), group.slots[index]
        return Row(
            serial=request.serial,
            admission=int(group.admissions[index]),
            start=start,
            end=start + 1,
            read_slot=int(slot),
            write_slot=int(slot),
            table_row=int(group.table_rows[index]),
            reaches_target=True,
            draw=group.draws[index],
            scores=None,
            position=int(plain.positions[index]),
        )

    @property
    def last_chunks(self) -> tuple[Row, ...]:
        """Rows whose state a hand-off waits for."""
        return tuple(row for row in self.prompts if row.parks)

    @cached_property
    def scores(self) -> tuple[tuple[int, Scores], ...]:
        """(index in the step, scores) of each row that scores its prompt."""
        found = enumerate(self.rows, len(self.plain))
        return tuple((i, row.scores) for i, row in found if row.scores is not None)
