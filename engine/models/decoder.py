"""The decoder that every family is composed as: an embedding, residual branches, a head."""

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import InvariantError
from baton.engine.layout.layout import LatentShape
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.commit_group import CommitGroup
from baton.engine.models.layers.base import DividedLayer, Layer
from baton.engine.models.layers.norm import Norm
from baton.engine.models.layers.vocabulary import Embedding, Head
from baton.engine.models.mtp_layer import MtpLayer
from baton.engine.models.step import Step
from baton.engine.models.tally import Tally
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.recurrent_index import RecurrentIndex, plan_recurrent
from baton.kernels.base import AttentionKind, Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class Block(Protocol):
    """A part of a decoder, from one residual stream to the next."""

    @property
    def mixes(self) -> bool:
        """True if a token's output depends on other tokens, or on `embedded`."""
        ...

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor:
        """Run the block.

        x: [T, hidden] -> [T, hidden]; embedded: [T, hidden], what the first block was given.
        """
        ...


@dataclass(frozen=True)
class Residual:
    """x + multiplier * sum of branch(norm(x)): one mixer, one feed-forward, or some in parallel."""

    kernels: Kernels
    norm: Norm
    branches: tuple[Layer, ...]
    multiplier: float = 1.0

    @property
    def mixes(self) -> bool:
        return any(branch.mixes for branch in self.branches)

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor:
        normed = self.norm(x)
        total = self._summed(normed, step)
        return self.kernels.add_scaled(x, total, self.multiplier)

    def _summed(self, normed: Tensor, step: Step) -> Tensor:
        """Return the sum of the branches. Ranks meet once for all that add up their parts."""
        divided = [b for b in self.branches if isinstance(b, DividedLayer) and b.divided]
        if len(divided) == len(self.branches):
            parts = [branch.part(normed, step) for branch in divided]
            return divided[0].comm.all_reduce(reduce(self._plus, parts))
        return reduce(self._plus, [branch(normed, step) for branch in self.branches])

    def _plus(self, one: Tensor, other: Tensor) -> Tensor:
        return self.kernels.add_scaled(one, other, 1.0)


@dataclass(frozen=True)
class Decoder:
    """A `Model`. Built by a family's file; frozen, and shared by every step.

    mixing: the blocks up to the last that mixes tokens. Those after it see the tokens alone whose
        logits are wanted: one of a prompt of thousands, none of a chunk that is not its last.
    mtp: the layer of multi-token prediction, where it is run. It takes the hidden states of all
        tokens, so `mixing` is then all blocks.
    """

    config: ModelConfig
    kernels: Kernels
    embedding: Embedding
    blocks: tuple[Block, ...]
    norm: Norm
    head: Head
    tally: Tally
    mixing: int
    embedding_multiplier: float = 1.0
    commits: tuple[CommitGroup, ...] = ()
    mtp: MtpLayer | None = None

    @property
    def weight_bytes(self) -> int:
        return self.tally.nbytes

    @property
    def needs_cpu_seq_lens(self) -> bool:
        latent = (isinstance(shape, LatentShape) for shape in self.config.attention)
        kinds = {AttentionKind.LATENT if found else AttentionKind.PAGED for found in latent}
        return not kinds.isdisjoint(self.kernels.needs_cpu_seq_lens)

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.step.model.Model`."""
        return plan_recurrent(self.config, self.kernels, *host.prefill(decode_rows), snapshots)

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.step.model.Model`."""
        step = Step.plan(batch, states, pages)
        x = self.embedding(batch.token_ids)
        x = embedded = self.kernels.scaled(x, self.embedding_multiplier)
        for block in self.blocks[: self.mixing]:
            x = block(x, embedded, step)
            if batch.progress is not None:
                batch.progress.block_ended()
        if self.mtp is not None:
            return self._record(self.mtp, self.norm(x), embedded, batch, step)
        if batch.progress is not None:
            batch.progress.all_written()
        wanted = self.kernels.select_rows(x, batch.logit_tokens)
        if wanted.shape[0]:
            for block in self.blocks[self.mixing :]:
                wanted = block(wanted, wanted, step)
        wanted = self.norm(wanted)
        return self.head(wanted)

    def _record(
        self, mtp: MtpLayer, x: Tensor, embedded: Tensor, batch: ForwardBatch, step: Step
    ) -> Tensor:
        """Write what the MTP layer keeps of a step, and return the logits. x, embedded: [T, hidden]

        The ranks meet in the head and not in that layer, so all have written it only then.
        """
        mtp.record(x, embedded, step)
        logits = self.head(self.kernels.select_rows(x, batch.logit_tokens))
        if batch.progress is not None:
            batch.progress.all_written()
        return logits

    @torch.no_grad()
    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.step.model.Model`."""
        kept = batch.kept
        for group in self.commits:
            group(kept, states, accepted)

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the last hidden states of sequences; see `baton.engine.step.model.Model`."""
        dtype = self.config.dtype if self.kernels.native is None else torch.float32
        kept = states.conv[self._mtp.shift.index]
        return kept.index_select(0, slots)[:, :, -1].to(dtype)

    @torch.no_grad()
    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row; see `baton.engine.step.model.Model`."""
        step = Step.draft(batch, states, pages)
        embedded = self.embedding(batch.token_ids)
        embedded = self.kernels.scaled(embedded, self.embedding_multiplier)
        normed, recycled = self._mtp.draft(batch.hidden, embedded, step)
        return DraftResult(self.head(normed), recycled)

    @property
    def _mtp(self) -> MtpLayer:
        if self.mtp is None:
            raise InvariantError("the model's configuration runs no MTP layer")
        return self.mtp
