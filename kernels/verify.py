"""Several tokens a row through recurrent mixers, and the commit of those that are accepted.

Speculative decoding computes Q tokens a row in one forward without knowing how many of them are
right. `*_verify` therefore writes no state: it keeps each token's inputs of the recurrence.
`*_commit` computes the accepted tokens again from these, and writes the state that they leave
behind. Between two tokens a state is rounded to the pool's dtype, as between two steps, so both
give what single steps would.

Token t of row r is token r * Q + t of the inputs.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from baton.kernels.conv1d import causal_conv1d_update, gated_conv_step, gated_inputs
from baton.kernels.delta_mixer import DeltaInputs, DeltaLayers, DeltaWeights, gated_delta_step
from baton.kernels.elementwise import sigmoid
from baton.kernels.gated_delta import gated_delta_update
from baton.kernels.mamba2 import Mamba2Layers, Mamba2Weights, mamba2_step
from baton.kernels.state_update import selective_state_update


class Accepted(NamedTuple):
    """The rows of a commit. B rows.

    read_slots:   [B] int64, as in the forward that verified
    write_slots:  [B] int64; may be the read slots
    has_initial:  [B] bool; False: start from zeros. None: all True
    counts:       [B] int64, accepted tokens, 0 to Q. 0: nothing is written
    track_slots:  [B] int64, slots of snapshots; 0: the row takes none
    track_counts: [B] int64, tokens of this commit that the snapshot stands after. Above the row's
                  count: the snapshot is not written
    """

    read_slots: Tensor
    write_slots: Tensor
    has_initial: Tensor | None
    counts: Tensor
    track_slots: Tensor
    track_counts: Tensor


def gated_conv_verify(
    bcx: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_conv_verify` in torch."""
    kept.copy_(gated_inputs(bcx, weight.shape[0])[0])
    walk = _Walk((conv_pool,), read_slots, has_initial)
    return walk.outputs(bcx, lambda at, slots: gated_conv_step(at, weight, bias, *slots), nodes)


def gated_conv_commit(kept: Tensor, width: int, conv_pools: Tensor, accepted: Accepted) -> None:
    """Implement `Kernels.gated_conv_commit` in torch."""
    taps = kept.new_zeros((kept.shape[2], width))

    def step(inputs: Tensor, pools: "_Pools") -> None:
        conv, slots, _ = pools
        causal_conv1d_update(inputs, taps, None, conv, slots, slots, silu=False)

    for layer in range(kept.shape[0]):
        _commit((conv_pools[layer],), kept[layer], accepted, step)


def mamba2_verify(
    weights: Mamba2Weights,
    zxbcdt: Tensor,
    conv_pool: Tensor,
    ssm_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.mamba2_verify` in torch."""
    kept.copy_(zxbcdt[:, weights.inner :])
    walk = _Walk((conv_pool, ssm_pool), read_slots, has_initial)
    return walk.outputs(zxbcdt, lambda at, pools: mamba2_step(weights, at, *pools), nodes)


def mamba2_commit(
    layers: Mamba2Layers, kept: Tensor, conv_pools: Tensor, ssm_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.mamba2_commit` in torch."""

    def step(weights: Mamba2Weights, inputs: Tensor, pools: "_Pools") -> None:
        conv, ssm, slot, _ = pools
        slots = (slot, slot)
        conv_input, dt = torch.split(inputs, weights.splits[1:], dim=-1)
        taps, bias = weights.conv_weight, weights.conv_bias
        x, B, C = weights.split_conv(causal_conv1d_update(conv_input, taps, bias, conv, *slots))
        selective_state_update(
            ssm, *slots, x, dt, weights.A, B, C, weights.D, weights.dt_bias, weights.dt_limit
        )

    for layer, weights in enumerate(layers.each):
        pools = conv_pools[layer], ssm_pools[layer]
        _commit(pools, kept[layer], accepted, partial(step, weights))


def gated_delta_verify(
    weights: DeltaWeights,
    inputs: DeltaInputs,
    conv_pool: Tensor,
    state_pool: Tensor,
    read_slots: Tensor,
    has_initial: Tensor | None,
    kept: Tensor,
    nodes: Tensor | None = None,
) -> Tensor:
    """Implement `Kernels.gated_delta_verify` in torch."""
    torch.cat((inputs.qkv, inputs.b, inputs.a), dim=-1, out=kept)
    walk = _Walk((conv_pool, state_pool), read_slots, has_initial)
    parts = [inputs.qkv, inputs.z, inputs.b, inputs.a]
    widths = [part.shape[1] for part in parts]
    return walk.outputs(
        torch.cat(parts, dim=-1),
        lambda at, pools: gated_delta_step(
            weights, DeltaInputs(*torch.split(at, widths, dim=-1)), *pools
        ),
        nodes,
    )


def gated_delta_commit(
    layers: DeltaLayers, kept: Tensor, conv_pools: Tensor, state_pools: Tensor, accepted: Accepted
) -> None:
    """Implement `Kernels.gated_delta_commit` in torch."""
    splits = kept_delta(layers.each[0])

    def step(weights: DeltaWeights, inputs: Tensor, pools: "_Pools") -> None:
        conv, states, slot, _ = pools
        slots = (slot, slot)
        qkv, b, a = torch.split(inputs, splits, dim=-1)
        q, k, v = weights.split_conv(
            causal_conv1d_update(qkv, weights.conv_weight, None, conv, *slots)
        )
        gated_delta_update(q, k, v, weights.log_decay(a), sigmoid(b), states, *slots)

    for layer, weights in enumerate(layers.each):
        pools = conv_pools[layer], state_pools[layer]
        _commit(pools, kept[layer], accepted, partial(step, weights))


def kept_delta(weights: DeltaWeights) -> list[int]:
    """Return the columns of the kept qkv, b and a of a gated-delta mixer."""
    return [weights.conv_weight.shape[0], weights.heads, weights.dt_bias.shape[0]]


# Pools of one slot a row, then the slots that a step of all rows reads and writes.
_Pools = tuple[Tensor, ...]


class _Walk:
    """Copies of the rows' states, which steps advance token by token."""

    def __init__(
        self, pools: tuple[Tensor, ...], read_slots: Tensor, has_initial: Tensor | None
    ) -> None:
        self._rows = torch.arange(read_slots.shape[0], device=read_slots.device)
        self.states = [pool.index_select(0, read_slots) for pool in pools]
        if has_initial is not None:
            for place, state in enumerate(self.states):
                started = has_initial.view(-1, *[1] * (state.dim() - 1))
                self.states[place] = torch.where(started, state, 0.0)

    def tokens(self, inputs: Tensor) -> list[Tensor]:
        """Return each token of all rows: [B * Q, n] -> Q times [B, n]."""
        rows = self._rows.shape[0]
        return list(inputs.view(rows, -1, inputs.shape[1]).unbind(1)) if rows else []

    @property
    def pools(self) -> _Pools:
        return (*self.states, self._rows, self._rows)

    def outputs(
        self,
        inputs: Tensor,
        step: Callable[[Tensor, _Pools], Tensor],
        nodes: Tensor | None = None,
    ) -> Tensor:
        """Compute all tokens: [B * Q, n] -> [B * Q, outputs]. nodes: as in gated_conv_verify"""
        tokens = self.tokens(inputs)
        if nodes is None or not tokens:
            found = [step(at, self.pools) for at in tokens]
        else:
            found = [step(at, self.pools) for at in self._behind_parents(tokens, nodes)]
        return torch.stack(found, dim=1).flatten(0, 1)

    def _behind_parents(self, tokens: list[Tensor], nodes: Tensor) -> Iterator[Tensor]:
        """Yield each token when the states are those behind its parent."""
        paths = nodes.view(self._rows.shape[0], len(tokens))
        behind = [[state.clone()] for state in self.states]  # before token 0, behind token 0 ...
        for place, token in enumerate(tokens):
            before = torch.arange(place, device=nodes.device)
            known = (paths[:, place : place + 1] >> before) & 1
            parents = (known * (before + 1)).amax(dim=1) if place else self._rows * 0
            for state, each in zip(self.states, behind, strict=True):
                state.copy_(torch.stack(each)[parents, self._rows])
            yield token
            for state, each in zip(self.states, behind, strict=True):
                each.append(state.clone())


def _commit(
    pools: tuple[Tensor, ...],
    kept: Tensor,
    accepted: Accepted,
    step: Callable[[Tensor, _Pools], None],
) -> None:
    """Write the states after each row's accepted tokens. Rows that write nothing write slot 0."""
    walk = _Walk(pools, accepted.read_slots, accepted.has_initial)
    for count, inputs in enumerate(walk.tokens(kept), 1):
        step(inputs, walk.pools)
        here = accepted.counts == count
        tracked = (accepted.track_counts == count) & (count <= accepted.counts)
        for pool, state in zip(pools, walk.states, strict=True):
            pool.index_copy_(0, torch.where(tracked, accepted.track_slots, 0), state)
            pool.index_copy_(0, torch.where(here, accepted.write_slots, 0), state)
