"""Trees of guesses by the model's own layer of multi-token prediction."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.speculation.proposer import DecodingStep
from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.model import Model


@dataclass(frozen=True)
class _Beams:
    """The tokens of one depth that the layer runs on: W of each of B rows, the likeliest first.

    places: [W] int64, of their entries behind the row's newest token. ids: [B, W] int64, of the
    candidates that they are, see `_Candidates`. nodes: [B, W] int64, bits of the places that a path
    to them has, and their own. scores: [B, W] float32, log probabilities of those paths; -inf: no
    token. parents: [B * W] int64, the beams before that they follow. hidden: [B * W, hidden]
    """

    token_ids: Tensor
    places: Tensor
    ids: Tensor
    nodes: Tensor
    scores: Tensor
    parents: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class _Candidates:
    """The tokens behind the beams of one depth, those that are drawn first: C of each row.

    The candidates of all depths are numbered from 1 on; 0 is the row's newest token.

    All are [B, C]. parents: int64, the numbers of those that they follow. scores: as of `_Beams`.
    """

    token_ids: Tensor
    parents: Tensor
    scores: Tensor


class MtpTree:
    """Runs the MTP layer on the newest token, then depth by depth on the likeliest tokens behind
    it, and makes a tree of all that these put first: of the paths that are likeliest.

    Tokens are put first as the token is drawn that they guess: by the same filters, masks and
    noise. The layer runs on one token of each depth at least, on as many as there are branches at
    most, and on no more in all than the tree has nodes: so their entries have room where the step
    writes those of the nodes. An entry lies where no other of this tree does, and is read by what
    follows it alone.
    """

    def __init__(
        self, model: Model, states: StatePool, pages: PagePool, branches: int, depth: int
    ) -> None:
        """branches: tokens behind a node, at most. depth: nodes of a path, at most."""
        self._model = model
        self._states = states
        self._pages = pages
        self._branches = min(branches, model.config.vocab_size)
        self._depth = depth

    def propose_tree(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `TreeProposer`."""
        newest = ends - 1
        # The first token of a sequence has no hidden state before it.
        wanted = torch.where(newest > 0, step.wanted, 0)
        sizes = beam_widths(most, self._branches, min(self._depth, most))
        token_ids = tables.tokens_at(rows, newest.clamp(min=0)).long()
        beams = self._newest(token_ids, step)
        found: list[_Candidates] = []
        for depth, wider in enumerate((*sizes[1:], 0)):
            runs = (beams.places <= wanted[:, None]) & (beams.scores > -torch.inf)
            runs &= wanted[:, None] > 0
            batch = self._batch(beams, tables, rows, newest, depth, runs.long(), step)
            logits, hidden = self._model.draft(batch, self._states, self._pages)
            found.append(self._behind(beams, runs, logits, depth, step))
            if wider:
                first = 1 + sum(each.token_ids.shape[1] for each in found[:-1])
                place = 1 + sum(sizes[1 : depth + 1])
                beams = _best(beams, found[-1], first, place, wider, hidden)
        return likeliest(found, wanted, most)

    def _newest(self, token_ids: Tensor, step: DecodingStep) -> _Beams:
        """Return the beams of the rows' newest tokens. token_ids: [B] int64"""
        one = token_ids.new_ones((len(token_ids), 1))
        return _Beams(
            token_ids=token_ids[:, None],
            places=one[0] - 1,
            ids=one - 1,
            nodes=one,
            scores=one.float() - 1,
            parents=torch.arange(len(token_ids), device=token_ids.device),
            hidden=self._model.hidden_before(self._states, step.read_slots),
        )

    def _batch(
        self,
        beams: _Beams,
        tables: RequestTables,
        rows: Tensor,
        newest: Tensor,
        depth: int,
        runs: Tensor,
        step: DecodingStep,
    ) -> DraftBatch:
        """Return what the layer runs on. runs: [B, W] int64, 0 where a beam is padding"""
        page_size, width = self._pages.layout.page_size, runs.shape[1]
        places = ((newest[:, None] + beams.places) * runs).flatten()
        positions = (newest + depth)[:, None] * runs
        table_rows = (rows[:, None] * runs).flatten()
        pages = tables.pages_at(table_rows, places // page_size)
        return DraftBatch(
            token_ids=(beams.token_ids * runs).flatten(),
            hidden=beams.hidden,
            positions=positions.flatten(),
            token_pages=pages * runs.flatten(),
            token_offsets=places % page_size,
            kv_lens=(positions + runs).flatten(),
            kv_lens_host=tuple(length for length in step.kv_lens_host for _ in range(width)),
            block_tables=tables.pages,
            table_rows=table_rows,
            nodes=(beams.nodes * runs).flatten(),
            parents=beams.parents,
        )

    def _behind(
        self, beams: _Beams, runs: Tensor, logits: Tensor, depth: int, step: DecodingStep
    ) -> _Candidates:
        """Return the tokens that are drawn first behind each beam. logits: [B * W, vocab]"""
        rows, width = runs.shape
        each = logits.view(rows, width, -1)
        ranks = (step.rank(each[:, beam], depth, self._branches) for beam in range(width))
        token_ids, scores = map(torch.stack, zip(*ranks, strict=True), (1, 1))
        whole = torch.where(runs[..., None], beams.scores[..., None] + scores, -torch.inf)
        parents = beams.ids[..., None].expand_as(token_ids)
        return _Candidates(token_ids.flatten(1), parents.flatten(1), whole.flatten(1))


def _best(
    beams: _Beams, behind: _Candidates, first: int, place: int, width: int, hidden: Tensor
) -> _Beams:
    """Return the `width` likeliest tokens of the next depth.

    first: the number of the first of `behind`. place: of the first entry. hidden: [B * W, hidden],
    what the layer has given for `beams`
    """
    rows, before = beams.token_ids.shape
    scores, at = behind.scores.topk(width, dim=1)
    beam = at // (behind.scores.shape[1] // before)
    places = place + torch.arange(width, device=at.device)
    parents = (beam + before * torch.arange(rows, device=at.device)[:, None]).flatten()
    return _Beams(
        token_ids=behind.token_ids.gather(1, at),
        places=places,
        ids=first + at,
        nodes=beams.nodes.gather(1, beam) | 1 << places,
        scores=scores,
        parents=parents,
        hidden=hidden.index_select(0, parents),
    )


def beam_widths(nodes: int, branches: int, depths: int) -> tuple[int, ...]:
    """Return how many tokens of each depth the layer runs on, the newest token's first: one at
    least, and more of the first ones, as long as those behind the newest are `nodes` at most.
    """
    widths, left = [1], nodes - (depths - 1)
    for _ in range(depths - 1):
        more = min(branches - 1, left)
        widths.append(1 + more)
        left -= more
    return tuple(widths)


def likeliest(found: list[_Candidates], wanted: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tree of each row's likeliest candidates, as `TreeProposer.propose_tree` does.

    A path is no likelier than its beginning, so what a chosen one follows is chosen too.

    found: of each depth. wanted: [B] int64, nodes of each row, at most. most: of all rows
    """
    token_ids, scores = (
        torch.cat([getattr(each, name) for each in found], dim=1)
        for name in ("token_ids", "scores")
    )
    order = scores.sort(dim=1, descending=True, stable=True).indices
    numbers = torch.arange(order.shape[1], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, numbers)
    chosen = (rank < wanted[:, None]) & (scores > -torch.inf)
    node = chosen.cumsum(dim=1) * chosen  # of each candidate; 0: it is left out
    paths = torch.ones_like(node[:, :1])  # of the newest token, then of the candidates
    for each in found:
        own = node[:, paths.shape[1] - 1 :][:, : each.parents.shape[1]]
        paths = torch.cat((paths, paths.gather(1, each.parents) | 1 << own), dim=1)
    guesses, links = (
        F.pad(torch.zeros_like(node), (0, max(0, 1 + most - node.shape[1]))).scatter(1, node, each)[
            :, 1 : 1 + most
        ]
        for each in (token_ids, paths[:, 1:])
    )
    return guesses, links, chosen.sum(dim=1)
