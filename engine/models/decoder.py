"""The decoder that every family is composed as: an embedding, residual branches, a head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.engine.config import ModelConfig
from baton.engine.forward_batch import ForwardBatch
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.layers.base import Layer
from baton.engine.models.scope import Tally
from baton.engine.models.step import Step
from baton.kernels.norm import rms_norm


@dataclass(frozen=True)
class Norm:
    """RMS norm. weight: [hidden], in the model's dtype."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


@dataclass(frozen=True)
class Residual:
    """x + multiplier * sum of branch(norm(x)): one mixer, one feed-forward, or some in parallel."""

    norm: Norm
    branches: tuple[Layer, ...]
    multiplier: float = 1.0

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        normed = self.norm(x)
        total = self.branches[0](normed, step)
        for branch in self.branches[1:]:
            total = total + branch(normed, step)
        return torch.add(x, total, alpha=self.multiplier)


@dataclass(frozen=True)
class Decoder:
    """A `Model`. Built by a family's file; frozen, and shared by every step.

    embedding: [vocab, hidden]; head: [vocab, hidden], the same tensor where they are tied.
    """

    config: ModelConfig
    embedding: Tensor
    blocks: tuple[Residual, ...]
    norm: Norm
    head: Tensor
    tally: Tally
    embedding_multiplier: float = 1.0
    logits_divisor: float = 1.0

    @property
    def weight_bytes(self) -> int:
        return self.tally.nbytes

    @torch.no_grad()
    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """One step; see `baton.engine.models.base.Model`."""
        step = Step.plan(batch, states, pages, self.config)
        x = F.embedding(batch.token_ids, self.embedding)
        if self.embedding_multiplier != 1.0:
            x = x * self.embedding_multiplier
        for block in self.blocks:
            x = block(x, step)
        wanted = self.norm(x.index_select(0, batch.logit_tokens))
        return F.linear(wanted, self.head).float() / self.logits_divisor
