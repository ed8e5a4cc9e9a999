"""The layer of multi-token prediction (DeepSeek-V3, arXiv:2412.19437): what steps write of it, and
the drafts that it gives."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from baton.engine.models.layers.hidden_shift import HiddenShift
from baton.engine.models.layers.linear import Linear
from baton.engine.models.layers.norm import Norm
from baton.engine.models.step import Step
from baton.engine.settings.choices import MtpRecycle
from baton.kernels.base import Kernels


class WritingAttention(Protocol):
    """An attention layer whose entries can be written without attending."""

    @property
    def mixes(self) -> bool: ...

    def write(self, x: Tensor, step: Step) -> None:
        """Write the entries of all tokens to their pages. x: [T, hidden]"""
        ...

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """Write the entries of one token a row, and attend from it. x: [B, hidden] -> the same"""
        ...


class Branch(Protocol):
    """The feed-forward behind the attention, from one residual stream to the next."""

    def __call__(self, x: Tensor, embedded: Tensor, step: Step) -> Tensor: ...


@dataclass(frozen=True)
class MtpLayer:
    """One decoder layer over [embedding of token i | hidden state of token i - 1], at place i.

    Its keys and values depend on these two alone, so they depend on the prefix up to token i alone:
    an entry of a cached page is right for every continuation. A step needs nothing else of the
    layer.

    branches: what follows the attention. norm: the last; its result gives the logits. recycle: what
    the next depth takes as hidden state.
    """

    kernels: Kernels
    embedding_norm: Norm
    hidden_norm: Norm
    fuse: Linear
    shift: HiddenShift
    attention_norm: Norm
    attention: WritingAttention
    branches: tuple[Branch, ...]
    norm: Norm
    recycle: MtpRecycle

    def record(self, hidden: Tensor, embedded: Tensor, step: Step) -> None:
        """Write the entries of all tokens of a step, and the last hidden states of its rows.

        hidden: [T, hidden], behind the model's last norm. embedded: [T, hidden], of the tokens
        """
        fused = self._fused(embedded, self.shift(hidden, step))
        self.attention.write(self.attention_norm(fused), step)

    def draft(self, hidden: Tensor, embedded: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Run the layer on one token a row.

        hidden: [B, hidden], of the token before each. embedded: [B, hidden], of the tokens
        returns [B, hidden] behind `norm`, and what the next depth goes on from, the same shape
        """
        x = self._fused(embedded, hidden)
        attended = self.attention(self.attention_norm(x), step)
        x = self.kernels.add_scaled(x, attended, 1.0)
        for branch in self.branches:
            x = branch(x, embedded, step)
        normed = self.norm(x)
        return normed, normed if self.recycle is MtpRecycle.AFTER_NORM else x

    def _fused(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return self.fuse(
            self.kernels.concat(self.embedding_norm(embedded), self.hidden_norm(hidden))
        )
