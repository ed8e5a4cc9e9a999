"""The verification of drafts: which of a window's tokens plain decoding would have drawn.

Plain decoding draws one token behind each prefix. A window has the logits behind several prefixes
of each row, so it draws them place by place by the same rules: place i by the penalties, filters,
masks and noise that plain decoding would have there. A row goes on as long as what was drawn is its
draft. Its answer is therefore the answer of plain decoding at any temperature.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from baton.core.sampling_params import SamplingParams
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.sampler import Sampled, pinned, sample
from baton.engine.forward.sampling_batch import SamplingBatch, bind_sampling, pack_sampling
from baton.engine.memory.request_tables import RequestTables
from baton.engine.schedule.batch import Batch, Draws, Row
from baton.engine.schedule.draw import DRAW_RECORD, Draw
from baton.kernels.base import Kernels
from baton.kernels.sampling import LogProbs

# Stands where a row has no draft: its logits are padding's, and nobody reads what is drawn.
_UNUSED = Draw(SamplingParams(temperature=0.0), short=False, allowed=None)


def draws_behind(rows: tuple[Row, ...], place: int) -> tuple[Draw, ...]:
    """Return the draws behind draft `place` of each row, the first draft being 1."""
    return tuple(
        row.draft_draws[place - 1] if place <= len(row.drafts) else _UNUSED for row in rows
    )


def asking_behind(rows: tuple[Row, ...], place: int) -> tuple[tuple[int, Draw], ...]:
    """Return (row, draw) of those behind draft `place` that want log probabilities."""
    draws = enumerate(draws_behind(rows, place))
    return tuple((i, draw) for i, draw in draws if draw.sampling.logprobs is not None)


@dataclass(frozen=True)
class WindowPlan:
    """The verification of one step on the device. B rows, windows of Q tokens.

    table_rows: [B] int64. drafts: [B, Q - 1] int64, then padding. counts: [B] int64, drafts a row.
    track_slots, track_counts: see `Accepted`. draws: behind each place of a window but the first.
    """

    table_rows: Tensor
    drafts: Tensor
    counts: Tensor
    track_slots: Tensor
    track_counts: Tensor
    draws: tuple[SamplingBatch, ...]


def plan_window(batch: Batch, device: torch.device) -> WindowPlan:
    """Copy what verifies the drafts of a step to the device."""
    rows, size = batch.decoding, batch.window
    table_rows = np.array([row.table_row for row in rows], np.int64)
    drafts = np.zeros((len(rows), size - 1), np.int64)
    for place, row in enumerate(rows):
        drafts[place, : len(row.drafts)] = row.drafts
    # A row without drafts is one of plain decoding, whose snapshot lies where it writes.
    tracked = [row.tracked[0] if row.drafts and row.tracked else None for row in rows]
    pack = HostPack()
    pack.ints("table_rows", table_rows)
    pack.ints("drafts", drafts.ravel())
    pack.ints("counts", [len(row.drafts) for row in rows])
    pack.ints("track_slots", [0 if t is None else t.slot for t in tracked])
    ends = zip(rows, tracked, strict=True)
    pack.ints("track_counts", [0 if t is None else t.depth - row.start for row, t in ends])
    packed = pack.ship(device)
    return WindowPlan(
        packed.ints("table_rows"),
        packed.ints("drafts").view(len(rows), size - 1),
        packed.ints("counts"),
        packed.ints("track_slots"),
        packed.ints("track_counts"),
        tuple(_draws(rows, table_rows, place, device) for place in range(1, size)),
    )


def _draws(
    rows: tuple[Row, ...],
    table_rows: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    place: int,
    device: torch.device,
) -> SamplingBatch:
    each = draws_behind(rows, place)
    records = np.array([draw.record for draw in each], DRAW_RECORD)
    draws = Draws(np.arange(len(rows)), table_rows, records, each)
    asking = asking_behind(rows, place)
    pack = HostPack()
    pack_sampling(draws, asking, (), pack)
    packed: DevicePack = pack.ship(device)
    return bind_sampling(draws, asking, (), packed)


@dataclass(frozen=True)
class Verified:
    """The results of a window. B rows.

    counts: [B] int64, tokens of each row that are right: the newest, and the drafts that were drawn
    tokens: [B, Q] int64, what was drawn behind each; past a row's count anything
    logprobs: behind each place but the first, of the draws that want them
    """

    counts: Tensor
    tokens: Tensor
    logprobs: tuple[LogProbs | None, ...]

    def to_host(self) -> "Verified":
        """Start copying to pinned memory, as `Sampled.to_host`."""
        if not self.tokens.is_cuda:
            return self
        logprobs = tuple(
            None if found is None else LogProbs(*map(pinned, found)) for found in self.logprobs
        )
        return Verified(pinned(self.counts), pinned(self.tokens), logprobs)


def begin_window(plan: WindowPlan, ends: Tensor, tables: RequestTables) -> Tensor:
    """Write the drafts behind the rows' sequences, of `ends` [B] tokens. Return [B, Q] int64, the
    tokens that each place of the windows sees with itself: 0 where it is padding.
    """
    size = plan.drafts.shape[1] + 1
    places = torch.arange(size, device=ends.device)
    real = places <= plan.counts[:, None]
    seen = torch.where(real, ends[:, None] + places, 0)
    rows = torch.where(real, plan.table_rows[:, None], 0)
    tables.append(rows[:, 1:].flatten(), (seen[:, 1:] - 1).clamp_(min=0).flatten(),
                  plan.drafts.flatten())  # fmt: skip
    return seen


def sample_window(
    logits: Tensor,
    first: SamplingBatch,
    plan: WindowPlan,
    ends: Tensor,
    tables: RequestTables,
    kernels: Kernels,
) -> tuple[Sampled, Verified]:
    """Sample the draws of a step that verifies drafts, and append the tokens of each row that are
    right.

    logits: [B Q + prompts' draws + scored tokens, vocab] float32, raw; changed in place
    first: the draws behind the rows' newest tokens, then those of prompts
    ends: [draws] int64, tokens of each sequence before the first that is sampled
    """
    rows, size = plan.drafts.shape[0], plan.drafts.shape[1] + 1
    window = logits[: rows * size].view(rows, size, -1)
    behind_newest = torch.cat((window[:, 0], logits[rows * size :]))
    sampled = sample(behind_newest, first, ends, tables, kernels)
    drawn, logprobs = [sampled.token_ids[:rows]], []
    ends, alive = ends[:rows], torch.ones_like(plan.counts, dtype=torch.bool)
    counts = torch.ones_like(plan.counts)
    for place, draws in enumerate(plan.draws, 1):
        alive = alive & (place <= plan.counts) & (drawn[-1] == plan.drafts[:, place - 1])
        counts += alive
        # Tokens of rows that have ended count in row 0, which is no request's.
        found = sample(
            window[:, place].contiguous(), _where(alive, draws), ends + place, tables, kernels
        )
        drawn.append(found.token_ids)
        logprobs.append(found.logprobs)
        at = torch.where(alive, ends + place, 0)
        tables.append(torch.where(alive, plan.table_rows, 0), at, found.token_ids)
    tables.lengths.index_add_(0, plan.table_rows, counts - 1)
    return sampled, Verified(counts, torch.stack(drawn, dim=1), tuple(logprobs))


def _where(alive: Tensor, draws: SamplingBatch) -> SamplingBatch:
    """Let the penalties of rows that are not `alive` [B] count in row 0 of the request tables."""
    known = draws.penalised
    if known is None:
        return draws
    table_rows = torch.where(alive[known.rows], known.table_rows, 0)
    return replace(draws, penalised=replace(known, table_rows=table_rows))
