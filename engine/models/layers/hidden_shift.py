"""The hidden state of the token before each token, across steps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.models.recurrent_layer import Commit
from baton.engine.models.scope import Scope
from baton.engine.models.step import Step
from baton.engine.step.recurrent_index import SHIFT_WIDTH
from baton.kernels.verify import Accepted


class HiddenShift:
    """A recurrent layer whose state is the last hidden state: each token is given the one before.

    It is the convolution of taps (1, 0): the kernels that carry the windows of convolutions through
    steps, verification, commits and snapshots then carry hidden states. A product with one and a
    sum with zero change no bit. Every rank has the whole state.
    """

    def __init__(self, scope: Scope, hidden: int, index: int) -> None:
        """index: which of the model's recurrent layers this is (its place in a state slot)."""
        self.index = index
        self.kernels = scope.kernels
        taps = torch.tensor([1.0] + [0.0] * (SHIFT_WIDTH - 1)).expand(hidden, -1)
        self.taps = scope.own(taps.contiguous())  # [hidden, width] float32
        scope.recurrent.append(self)

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        """Shift. hidden: [T, hidden] -> [T, hidden]; zeros for the first token of a sequence"""
        done, pool = step.decode_tokens, step.states.conv[self.index]
        parts = []
        if step.decode is not None:
            rows = step.decode
            given = (hidden[:done], self.taps, None, pool, rows.read_slots)
            if rows.kept is None:
                y = self.kernels.gated_conv_step(*given, rows.write_slots, rows.has_initial)
            else:
                kept = rows.kept[self.index]
                y = self.kernels.gated_conv_verify(*given, rows.has_initial, kept, rows.nodes)
            parts.append(y)
        if step.prefill is not None:
            parts.append(step.prefill.shift(hidden[done:], self.taps, None, pool))
        step.state_written(self.index)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @classmethod
    def commit_of(cls, layers: "Sequence[HiddenShift]") -> Commit:
        """See `RecurrentLayer`."""
        kernels = layers[0].kernels

        def commit(
            kept: Tensor, conv_pools: Tensor, state_pools: Tensor | None, accepted: Accepted
        ) -> None:
            kernels.gated_conv_commit(kept, SHIFT_WIDTH, conv_pools, accepted)

        return commit
