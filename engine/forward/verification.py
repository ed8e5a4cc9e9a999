"""The verification of drafts: which of a window's tokens plain decoding would have drawn.

Plain decoding draws one token behind each prefix. A window has the logits behind several prefixes
of each row, so it draws them place by place by the same rules: place i by the penalties, filters,
masks and noise that plain decoding would have there. A row goes on as long as what was drawn is its
draft. Its answer is therefore the answer of plain decoding at any temperature.

Where a row begins, which drafts it has and how far it gets are known on the device alone: the host
has planned it while the step before was under way.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from baton.core.sampling_params import SamplingParams
from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.forward.sampler import Sampled, drawn, pinned, ranked, sample
from baton.engine.forward.sampling_batch import SamplingBatch, bind_sampling, pack_sampling
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.draw import DRAW_RECORD, Draw
from baton.engine.speculation.proposer import DecodingStep, DeviceProposer, TreeProposer
from baton.engine.speculation.synthetic import SyntheticAcceptance
from baton.engine.step.batch import UNBOUNDED, Batch, Draws, Row
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.tree_path import chain_nodes, depths_of, follow, with_padding
from baton.kernels.base import Kernels
from baton.kernels.sampling import LogProbs
from baton.kernels.verify import Accepted

# Stands where a row has no draft: its logits are padding's, and nobody reads what is drawn.
_UNUSED = Draw(SamplingParams(temperature=0.0), short=False, allowed=None)


def draws_behind(batch: Batch, place: int) -> tuple[Draw, ...]:
    """Return the draws behind draft `place` of each row that decodes, the first draft being 1."""
    return (
        *batch.plain.group.draws,
        *(_behind(row, row.draw or _UNUSED, place) for row in batch.decoding),
    )


def _behind(row: Row, draw: Draw, place: int) -> Draw:
    if not row.drafts:
        return draw
    return row.draft_draws[place - 1] if place <= len(row.drafts) else _UNUSED


def asking_behind(batch: Batch, place: int) -> tuple[tuple[int, Draw], ...]:
    """Return (row, draw) of those behind draft `place` that want log probabilities."""
    draws = enumerate(draws_behind(batch, place))
    return tuple((i, draw) for i, draw in draws if draw.sampling.logprobs is not None)


@dataclass(frozen=True)
class WindowPlan:
    """The verification of one step on the device. B rows, windows of Q tokens. All [B] int64 but:

    table_rows: of the request tables. drafts: [B, Q - 1], the host's, then padding. counts: of the
    host's drafts. guesses: drafts that the device guesses, at most; most_guesses: of any row.
    layered: of them, those that the model's own layer guesses; most_layered: of any row.
    rooms: tokens of the sequence that may be computed. track_slots, track_depths: the snapshot
    that a row may take beside the slot that it writes, and the tokens that it stands after; 0: none
    draws: behind each place of a window but the first
    """

    table_rows: Tensor
    drafts: Tensor
    counts: Tensor
    guesses: Tensor
    most_guesses: int
    layered: Tensor
    most_layered: int
    rooms: Tensor
    track_slots: Tensor
    track_depths: Tensor
    draws: tuple[SamplingBatch, ...]


def plan_window(batch: Batch, first: SamplingBatch, device: torch.device) -> WindowPlan:
    """Copy what verifies the drafts of a step to the device.

    first: the draws behind the rows' newest tokens, then those of prompts.
    """
    plain, rows, size = len(batch.plain), batch.decoding, batch.window
    count = batch.decode_rows
    table_rows = batch.columns[4, :count]
    drafts = np.zeros((count, size - 1), np.int64)
    # counts, guesses, rooms, track slots and depths, guesses of the model's own layer: of a plain
    # row, it computes one token.
    columns = np.zeros((6, count), np.int64)
    columns[2] = UNBOUNDED
    for place, row in enumerate(rows, plain):
        drafts[place, : len(row.drafts)] = row.drafts
        # A row that verifies nothing leaves its snapshot where it writes.
        slot, depth = 0, 0
        if row.verifies and row.tracked:
            slot, depth = row.tracked[0].slot, row.tracked[0].depth
        columns[:, place] = len(row.drafts), row.guesses, row.room, slot, depth, row.layered
    pack = HostPack()
    pack.ints("table_rows", table_rows)
    pack.ints("drafts", drafts.ravel())
    for name, column in zip(
        ("counts", "guesses", "rooms", "slots", "depths", "layered"), columns, strict=True
    ):
        pack.ints(name, column)
    packed = pack.ship(device)
    draws: tuple[SamplingBatch, ...]
    if any(row.drafts for row in rows):  # whose masks differ from place to place
        draws = tuple(_draws(batch, place, device) for place in range(1, size))
    else:
        alike = _draws(batch, 1, device) if batch.prompts else first
        draws = (alike,) * (size - 1)
    return WindowPlan(
        packed.ints("table_rows"),
        packed.ints("drafts").view(count, size - 1),
        packed.ints("counts"),
        packed.ints("guesses"),
        int(columns[1].max(initial=0)),
        packed.ints("layered"),
        int(columns[5].max(initial=0)),
        packed.ints("rooms"),
        packed.ints("slots"),
        packed.ints("depths"),
        draws,
    )


def _draws(batch: Batch, place: int, device: torch.device) -> SamplingBatch:
    """Pack the draws behind draft `place` of each row that decodes."""
    each, count = draws_behind(batch, place), batch.decode_rows
    records = np.array([draw.record for draw in each], DRAW_RECORD)
    draws = Draws(np.arange(count), batch.columns[4, :count], records, each)
    asking = asking_behind(batch, place)
    pack = HostPack()
    pack_sampling(draws, asking, (), pack)
    packed: DevicePack = pack.ship(device)
    return bind_sampling(draws, asking, (), packed)


@dataclass(frozen=True)
class Begun:
    """The windows of one step, when the step before is over. B rows of Q tokens.

    ends: [B] int64, tokens of each sequence, the newest included
    drafts: [B, Q - 1] int64; counts: [B] int64, how many of each row's are drafts
    alive: [B] bool; False: its request has got to its length in the step before
    real: [B, Q] bool, where the window is no padding
    nodes: [B, Q] int64, the links of trees, see `Window`; None: drafts follow one another
    """

    ends: Tensor
    drafts: Tensor
    counts: Tensor
    alive: Tensor
    real: Tensor
    nodes: Tensor | None = None

    @property
    def seen(self) -> Tensor:
        """[B, Q] int64, the tokens that each place sees with itself: 0 where it is padding."""
        depths = self.order if self.nodes is None else depths_of(self.nodes)
        return torch.where(self.real, self.ends[:, None] + depths, 0)

    @property
    def places(self) -> Tensor:
        """[B, Q] int64, where the token of each place lies: 0 where it is padding."""
        return torch.where(self.real, self.ends[:, None] - 1 + self.order, 0)

    @property
    def order(self) -> Tensor:
        """[Q] int64: 0, 1, 2 …"""
        return torch.arange(self.real.shape[1], device=self.ends.device)


@dataclass(frozen=True)
class Verified:
    """The results of a window. B rows.

    starts: [B] int64, tokens of each row that were computed before
    drafts: [B] int64, how many each row had
    counts: [B] int64, tokens of each row that are right: the newest, and the drafts that were drawn
    tokens: [B, any] int64, what was drawn behind each; past a row's count anything
    logprobs: behind each place but the first, of the draws that want them; as many as of tokens
    path: [B, Q] int64, the node that is to come to each place, see `keep_path`; None: no tree
    """

    starts: Tensor
    drafts: Tensor
    counts: Tensor
    tokens: Tensor
    logprobs: tuple[LogProbs | None, ...]
    path: Tensor | None = None

    def to_host(self) -> "Verified":
        """Start copying to pinned memory, as `Sampled.to_host`."""
        if not self.tokens.is_cuda:
            return self
        logprobs = tuple(
            None if found is None else LogProbs(*map(pinned, found)) for found in self.logprobs
        )
        lengths = pinned(self.starts), pinned(self.drafts), pinned(self.counts)
        return Verified(*lengths, pinned(self.tokens), logprobs)


def begin_window(
    plan: WindowPlan,
    forward: ForwardBatch,
    ends: Tensor,
    tables: RequestTables,
    proposer: DeviceProposer | TreeProposer | None,
    kernels: Kernels,
) -> Begun:
    """Guess drafts, and write all drafts behind the rows' sequences, of `ends` [B] tokens."""
    size = plan.drafts.shape[1] + 1
    drafts, counts, nodes = plan.drafts, plan.counts, None
    if forward.nodes is not None:
        nodes = chain_nodes(len(ends), size, ends.device)
    if plan.most_guesses and proposer is not None:
        step = _decoding_step(plan, forward, ends, tables, kernels)
        place = tables, plan.table_rows, ends, plan.most_guesses, step
        links = None
        if isinstance(proposer, TreeProposer):
            guessed, links, found = proposer.propose_tree(*place)
        else:
            guessed, found = proposer.propose(*place)
        guessed = F.pad(guessed, (0, size - 1 - plan.most_guesses))
        mine = plan.guesses > 0
        drafts = torch.where(mine[:, None], guessed, drafts)
        counts = torch.where(mine, torch.minimum(found, plan.guesses), counts)
        if nodes is not None and links is not None:
            links = F.pad(links, (1, size - 1 - plan.most_guesses), value=1)
            nodes = torch.where(mine[:, None], links, nodes)
    alive = ends <= plan.rooms
    counts = torch.minimum(counts, plan.rooms - ends).clamp_(min=0)
    places = torch.arange(size, device=ends.device)
    real = (places <= counts[:, None]) & alive[:, None]
    if nodes is not None:
        nodes = with_padding(nodes, counts)
    begun = Begun(ends, drafts, counts, alive, real, nodes)
    rows = torch.where(real[:, 1:], plan.table_rows[:, None], 0)
    tables.append(rows.flatten(), begun.places[:, 1:].flatten(), drafts.flatten())
    return begun


def _decoding_step(
    plan: WindowPlan,
    forward: ForwardBatch,
    ends: Tensor,
    tables: RequestTables,
    kernels: Kernels,
) -> DecodingStep:
    """Return what a proposer that runs the model needs of the step."""

    def draw(logits: Tensor, guesses: int) -> Tensor:
        # A row whose drafts are guessed has one draw behind all of them.
        return drawn(logits, plan.draws[guesses], ends + guesses, tables, kernels)

    def rank(logits: Tensor, guesses: int, most: int) -> tuple[Tensor, Tensor]:
        return ranked(logits, plan.draws[guesses], ends + guesses, tables, kernels, most)

    rows = forward.decode_requests
    size = plan.drafts.shape[1] + 1
    wanted = torch.minimum(plan.guesses, plan.rooms - ends).clamp_(min=0)
    return DecodingStep(
        wanted,
        forward.read_slots[:rows],
        forward.host.kv_lens[: rows * size : size],
        draw,
        rank,
        plan.layered > 0,
        plan.most_layered,
    )


def sample_window(
    logits: Tensor,
    first: SamplingBatch,
    plan: WindowPlan,
    begun: Begun,
    ends: Tensor,
    tables: RequestTables,
    kernels: Kernels,
    readable: bool = False,
    synthetic: SyntheticAcceptance | None = None,
) -> tuple[Sampled, Verified]:
    """Sample the draws of a step that verifies drafts. Append those of each row that are right, but
    not what is drawn behind its newest token.

    readable: the host may look whether any row goes on, and stop where none does. synthetic: draws
    which drafts are right; they are what is drawn in front of them.

    logits: [B Q + prompts' draws + scored tokens, vocab] float32, raw; changed in place
    first: the draws behind the rows' newest tokens, then those of prompts
    ends: [draws] int64, tokens of each sequence before the first that is sampled
    """
    rows, size = plan.drafts.shape[0], plan.drafts.shape[1] + 1
    window = logits[: rows * size].view(rows, size, -1)
    behind_newest = torch.cat((window[:, 0], logits[rows * size :]))
    kept = None if synthetic is None else synthetic.draw(begun.real[:, 1:])

    def force(place: int) -> Tensor | None:
        if kept is None or place >= kept.shape[1]:
            return None
        return torch.where(kept[:, place], begun.drafts[:, place], -1)

    sampled = sample(behind_newest, first, ends, tables, kernels, force(0))
    tokens_behind, logprobs = [sampled.token_ids[:rows]], []
    alive, ends = begun.alive, begun.ends
    counts = torch.ones_like(begun.counts)
    nodes, at_node = begun.nodes, torch.zeros_like(begun.counts)
    path = None if nodes is None else begun.order.repeat(rows, 1)
    for place, draws in enumerate(plan.draws, 1):
        if nodes is None or path is None:
            right = (tokens_behind[-1] == begun.drafts[:, place - 1]) & (place <= begun.counts)
        else:
            tree = nodes, begun.drafts, begun.real
            right, at_node = follow(*tree, at_node, tokens_behind[-1])
        if kept is not None:
            right = kept[:, place - 1]  # False where there is no draft
        alive = alive & right
        if readable and not alive.any():
            break
        counts += alive
        # Tokens of rows that have ended count in row 0, which is no request's.
        if path is None:
            at_place = window[:, place].contiguous()
        else:
            path[:, place] = torch.where(alive, at_node, place)
            at_place = window[torch.arange(rows), at_node]
        found = sample(at_place, _where(alive, draws), ends + place, tables, kernels, force(place))
        tokens_behind.append(found.token_ids)
        logprobs.append(found.logprobs)
        at = torch.where(alive, ends + place, 0)
        tables.append(torch.where(alive, plan.table_rows, 0), at, found.token_ids)
    tables.lengths.index_add_(0, plan.table_rows, counts - 1)
    drafts = torch.where(begun.alive, begun.counts, 0)
    tokens = torch.stack(tokens_behind, dim=1)
    return sampled, Verified(ends - 1, drafts, counts, tokens, tuple(logprobs), path)


def accepted(forward: ForwardBatch, plan: WindowPlan, begun: Begun, counts: Tensor) -> Accepted:
    """Return what the commit of a window writes. counts: [B] int64, of `Verified`."""
    rows = slice(forward.decode_requests)
    started = all(forward.host.has_initial[: forward.decode_rows])
    tracked = plan.track_slots > 0
    return Accepted(
        forward.read_slots[rows],
        forward.write_slots[rows],
        None if started else forward.has_initial[rows],
        torch.where(begun.alive, counts, 0),
        plan.track_slots,
        torch.where(tracked, plan.track_depths - begun.ends + 1, 0),
    )


def _where(alive: Tensor, draws: SamplingBatch) -> SamplingBatch:
    """Let the penalties of rows that are not `alive` [B] count in row 0 of the request tables."""
    known = draws.penalised
    if known is None:
        return draws
    table_rows = torch.where(alive[known.rows], known.table_rows, 0)
    return replace(draws, penalised=replace(known, table_rows=table_rows))
