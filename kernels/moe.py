"""Mixture of experts: routing and the experts' feed-forward, without expert counts on the host."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.elementwise import relu2, swiglu
from baton.kernels.linear import Int8Weight, Weight, weight_parts
from baton.kernels.native import signatures
from baton.kernels.native.recorder import SMALL, Native


def route_softmax_topk(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The top-k experts of each token, weighted by a softmax over their own logits (Granite).

    router_logits: [T, E] float
    returns weights [T, top_k] float32 and experts [T, top_k] int64
    """
    logits, experts = router_logits.float().topk(top_k, dim=-1)
    return logits.softmax(dim=-1), experts


def route_softmax_topk_native(
    native: Native, router_logits: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """The same, for contiguous float32; of equal logits the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        signatures.RouteSoftmax(
            router_logits.data_ptr(), weights.data_ptr(), chosen.data_ptr(), rows, experts, top_k
        ),
        small=router_logits.numel() * top_k < SMALL,
    )
    return weights, chosen


def route_sigmoid_grouped(
    router_logits: Tensor,
    correction: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = True,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The top-k experts of each token by corrected sigmoid scores, within its best groups of
    experts, weighted by the scores themselves (DeepSeek-V3, arXiv:2412.19437; Nemotron 3).

    router_logits: [T, E] float32
    correction: [E] float32, balances the choice of experts and has no part in their weights
    groups:     equal runs of experts; the best are those with the largest sum of two scores
    normalised: weights of a token add up to one, before they are multiplied by `factor`
    returns weights [T, top_k] float32 and experts [T, top_k] int64
    """
    scores = router_logits.sigmoid()
    chosen_by = scores + correction
    if top_groups < groups:
        grouped = chosen_by.view(-1, groups, chosen_by.shape[1] // groups)
        worth = grouped.topk(2, dim=-1).values.sum(dim=-1)
        chosen_by = _within(grouped, worth, top_groups)
    experts = chosen_by.topk(top_k, dim=-1).indices
    weights = scores.gather(1, experts)
    if normalised:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * factor, experts


def route_softmax_grouped(
    router_logits: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = False,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The top-k experts of each token by a softmax over all, within its best groups of experts,
    weighted by what the softmax gives them (DeepSeek-V2, arXiv:2405.04434).

    router_logits: [T, E] float32
    groups:     equal runs of experts; the best are those that hold the likeliest experts
    normalised: weights of a token add up to one, before they are multiplied by `factor`
    returns weights [T, top_k] float32 and experts [T, top_k] int64
    """
    scores = router_logits.softmax(dim=-1)
    if top_groups < groups:
        grouped = scores.view(-1, groups, scores.shape[1] // groups)
        scores = _within(grouped, grouped.amax(dim=-1), top_groups)
    weights, experts = scores.topk(top_k, dim=-1)
    if normalised:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * factor, experts


def route_softmax_grouped_native(
    native: Native,
    router_logits: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = False,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same, for contiguous logits; of equal scores the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        signatures.RouteSoftmaxGrouped(
            router_logits.data_ptr(),
            weights.data_ptr(),
            chosen.data_ptr(),
            rows,
            experts,
            top_k,
            groups,
            top_groups,
            int(normalised),
            factor,
        ),
        small=router_logits.numel() * top_k < SMALL,
    )
    return weights, chosen


def _within(grouped: Tensor, worth: Tensor, top_groups: int) -> Tensor:
    """[T, E]: the scores [T, groups, experts of one] of the groups that are worth most; -inf in
    the others. worth: [T, groups]"""
    best = worth.topk(top_groups, dim=-1).indices
    outside = torch.ones_like(worth).scatter_(1, best, 0.0).bool()
    return grouped.masked_fill(outside[:, :, None], -torch.inf).flatten(1)


def route_sigmoid_grouped_native(
    native: Native,
    router_logits: Tensor,
    correction: Tensor,
    top_k: int,
    groups: int = 1,
    top_groups: int = 1,
    normalised: bool = True,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same, for contiguous logits; of equal scores the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        signatures.RouteGrouped(
            router_logits.data_ptr(),
            correction.data_ptr(),
            weights.data_ptr(),
            chosen.data_ptr(),
            rows,
            experts,
            top_k,
            groups,
            top_groups,
            int(normalised),
            factor,
        ),
        small=router_logits.numel() * top_k < SMALL,
    )
    return weights, chosen


def _choices(native: Native, rows: int, top_k: int) -> tuple[Tensor, Tensor]:
    return native.empty(rows, top_k), native.empty(rows, top_k, dtype=torch.int64)


def experts_swiglu(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
) -> Tensor:
    """Each token through its experts, `w_out(silu(gate) * up)`, summed by its routing weights.

    x:       [T, H] float
    weights: [T, K] float32
    experts: [T, K] int64, index into E
    w_in:    [E, 2 I, H] float, or 8-bit; the gate's rows, then those of the up projection
    w_out:   [E, H, I], dtype of w_in; rows of both must be a multiple of 16 bytes
    returns  [T, H], dtype of x
    """
    return _through_experts(x, weights, experts, w_in, w_out, swiglu)


def experts_swiglu_native(
    native: Native, x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
) -> Tensor:
    """The same for float32 x, with rows of any size; bfloat16 weights meet it as in linear_native.
    Each expert's weights are read once, whatever the tokens that chose it."""
    return _experts_native(native, x, weights, experts, w_in, w_out, gated=True)


def experts_relu2(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
) -> Tensor:
    """The same for experts without a gate, `w_out(relu(w_in x)^2)`: w_in is [E, I, H]."""
    return _through_experts(x, weights, experts, w_in, w_out, relu2)


def experts_relu2_native(
    native: Native, x: Tensor, weights: Tensor, experts: Tensor, w_in: Weight, w_out: Weight
) -> Tensor:
    """experts_relu2 as experts_swiglu_native does it."""
    return _experts_native(native, x, weights, experts, w_in, w_out, gated=False)


def _experts_native(
    native: Native,
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: Weight,
    w_out: Weight,
    gated: bool,
) -> Tensor:
    rows, top_k = experts.shape
    count, width, inner = w_out.shape
    up, up_scale = weight_parts(w_in)
    down, down_scale = weight_parts(w_out)
    gathered, activated = (native.empty(rows * top_k, -(-n // 32) * 32) for n in (width, inner))
    outer, y = native.empty(rows * top_k, width), native.empty(rows, width)
    order = native.empty(rows * top_k + 2 * count + 2, dtype=torch.int64)
    native.call(
        signatures.Experts(
            x.data_ptr(),
            weights.data_ptr(),
            experts.data_ptr(),
            up.data_ptr(),
            down.data_ptr(),
            up_scale,
            down_scale,
            gathered.data_ptr(),
            activated.data_ptr(),
            outer.data_ptr(),
            order.data_ptr(),
            y.data_ptr(),
            rows,
            width,
            inner,
            count,
            top_k,
            x.stride(0),
            signatures.DTYPES[up.dtype],
            int(gated),
        )
    )
    return y


def _through_experts(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: Weight,
    w_out: Weight,
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    w_in, w_out = (w.dense() if isinstance(w, Int8Weight) else w for w in (w_in, w_out))
    tokens, top_k = experts.shape
    ordered, order = experts.flatten().sort(stable=True)
    # Where each expert's run ends in the sorted order; the grouped product reads it on the device.
    every_expert = torch.arange(w_in.shape[0], device=x.device)
    ends = torch.searchsorted(ordered, every_expert, right=True, out_int32=True)
    inner = F.grouped_mm(x[order // top_k].to(w_in.dtype), w_in.transpose(1, 2), offs=ends)
    outer = F.grouped_mm(activation(inner), w_out.transpose(1, 2), offs=ends)
    # Back in each token's own order of experts, so that its sum does not depend on the batch.
    by_token = torch.empty_like(outer).index_copy_(0, order, outer).view(tokens, top_k, x.shape[1])
    return (by_token * weights[:, :, None]).sum(dim=1).to(x.dtype)


def moe_forward(
    x: Tensor, router_logits: Tensor, w_in: Tensor, w_out: Tensor, top_k: int
) -> Tensor:
    """Granite's mixture: softmax over the top-k logits, SwiGLU experts.

    x [T, H], router_logits [T, E], w_in [E, 2 I, H], w_out [E, H, I] float; returns [T, H]
    """
    weights, experts = route_softmax_topk(router_logits, top_k)
    return experts_swiglu(x, weights, experts, w_in, w_out)


def moe_forward_ref(
    x: Tensor, router_logits: Tensor, w_in: Tensor, w_out: Tensor, top_k: int
) -> Tensor:
    """The same, token by token in float64; returns float64 [T, H]. For tests."""
    experts = router_logits.double().argsort(descending=True)[:, :top_k]
    weights = router_logits.double().gather(1, experts).softmax(dim=1)
    return experts_swiglu_ref(x, weights, experts, w_in, w_out)


def experts_swiglu_ref(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Tensor, w_out: Tensor
) -> Tensor:
    """experts_swiglu, token by token in float64; returns float64 [T, H]. For tests."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, (chosen, by) in enumerate(zip(experts, weights.double(), strict=True)):
        for expert, weight in zip(chosen, by, strict=True):
            gate, up = (w_in[expert].double() @ x[t].double()).chunk(2)
            out[t] += weight * (w_out[expert].double() @ (F.silu(gate) * up))
    return out


def route_sigmoid_grouped_ref(
    router_logits: Tensor,
    correction: Tensor,
    top_k: int,
    groups: int,
    top_groups: int,
    normalised: bool,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """route_sigmoid_grouped, token by token in float64. For tests."""
    all_weights, all_experts = [], []
    size = router_logits.shape[1] // groups
    for scores in router_logits.double().sigmoid():
        ranked = scores + correction.double()
        worth = [
            float(ranked[g * size : (g + 1) * size].sort().values[-2:].sum()) for g in range(groups)
        ]
        best = sorted(range(groups), key=lambda g: -worth[g])[:top_groups]
        within = [e for g in best for e in range(g * size, (g + 1) * size)]
        experts = sorted(within, key=lambda e: -float(ranked[e]))[:top_k]
        weights = scores[experts]
        all_weights.append(weights / weights.sum() * factor if normalised else weights * factor)
        all_experts.append(experts)
    return torch.stack(all_weights), torch.tensor(all_experts)


def route_softmax_grouped_ref(
    router_logits: Tensor,
    top_k: int,
    groups: int,
    top_groups: int,
    normalised: bool,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """route_softmax_grouped, token by token in float64. For tests."""
    all_weights, all_experts = [], []
    size = router_logits.shape[1] // groups
    for scores in router_logits.double().softmax(dim=-1):
        best = sorted(range(groups), key=lambda g: -float(scores[g * size : (g + 1) * size].max()))
        within = [e for g in best[:top_groups] for e in range(g * size, (g + 1) * size)]
        experts = sorted(within, key=lambda e: -float(scores[e]))[:top_k]
        weights = scores[experts]
        all_weights.append(weights / weights.sum() * factor if normalised else weights * factor)
        all_experts.append(experts)
    return torch.stack(all_weights), torch.tensor(all_experts)


def experts_relu2_ref(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Tensor, w_out: Tensor
) -> Tensor:
    """experts_relu2, token by token in float64; returns float64 [T, H]. For tests."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, (chosen, by) in enumerate(zip(experts, weights.double(), strict=True)):
        for expert, weight in zip(chosen, by, strict=True):
            inner = F.relu(w_in[expert].double() @ x[t].double()).square()
            out[t] += weight * (w_out[expert].double() @ inner)
    return out
