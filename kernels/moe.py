"""Mixture of experts: routing and the experts' feed-forward, without expert counts on the host."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels.eight_bit_weight import EightBitExperts, Fp8Words
from baton.kernels.elementwise import relu2, swiglu
from baton.kernels.linear import ExpertWeight
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native


def route_softmax_topk(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.route_softmax_topk` in torch."""
    logits, experts = router_logits.float().topk(top_k, dim=-1)
    return logits.softmax(dim=-1), experts


def route_softmax_topk_native(
    native: Native, router_logits: Tensor, top_k: int
) -> tuple[Tensor, Tensor]:
    """Implement `Kernels.route_softmax_topk` natively, for contiguous float32 logits; of equal
    logits the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        "route_softmax",
        router_logits.numel() * top_k < SMALL,
        logits=router_logits,
        weights=weights,
        chosen=chosen,
        rows=rows,
        experts=experts,
        top_k=top_k,
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
    """Implement `Kernels.route_sigmoid_grouped` in torch."""
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
    """Implement `Kernels.route_softmax_grouped` in torch."""
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
    """Implement `Kernels.route_softmax_grouped` natively, for contiguous logits; of equal scores
    the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        "route_softmax_grouped",
        router_logits.numel() * top_k < SMALL,
        logits=router_logits,
        weights=weights,
        chosen=chosen,
        rows=rows,
        experts=experts,
        top_k=top_k,
        groups=groups,
        top_groups=top_groups,
        normalised=int(normalised),
        factor=factor,
    )
    return weights, chosen


def _within(grouped: Tensor, worth: Tensor, top_groups: int) -> Tensor:
    """Return the scores [T, groups, experts of one] as [T, E], -inf outside of the best groups.

    worth: [T, groups], by which groups are ranked
    """
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
    """Implement `Kernels.route_sigmoid_grouped` natively, for contiguous logits; of equal scores
    the first are chosen."""
    rows, experts = router_logits.shape
    weights, chosen = _choices(native, rows, top_k)
    native.call(
        "route_grouped",
        router_logits.numel() * top_k < SMALL,
        logits=router_logits,
        correction=correction,
        weights=weights,
        chosen=chosen,
        rows=rows,
        experts=experts,
        top_k=top_k,
        groups=groups,
        top_groups=top_groups,
        normalised=int(normalised),
        factor=factor,
    )
    return weights, chosen


def _choices(native: Native, rows: int, top_k: int) -> tuple[Tensor, Tensor]:
    return native.empty(rows, top_k), native.empty(rows, top_k, dtype=torch.int64)


def experts_swiglu(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
) -> Tensor:
    """Implement `Kernels.experts_swiglu` in torch."""
    return _through_experts(x, weights, experts, w_in, w_out, swiglu)


def experts_swiglu_native(
    native: Native,
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: ExpertWeight,
    w_out: ExpertWeight,
) -> Tensor:
    """Implement `Kernels.experts_swiglu` natively, for float32 x and rows of any size; bfloat16
    weights are multiplied as in linear_native. Each expert's weights are read once, whatever the
    number of its tokens."""
    return _experts_native(native, x, weights, experts, w_in, w_out, gated=True)


def experts_relu2(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: ExpertWeight, w_out: ExpertWeight
) -> Tensor:
    """Implement `Kernels.experts_relu2` in torch."""
    return _through_experts(x, weights, experts, w_in, w_out, relu2)


def experts_relu2_native(
    native: Native,
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: ExpertWeight,
    w_out: ExpertWeight,
) -> Tensor:
    """Implement `Kernels.experts_relu2` natively, as experts_swiglu_native does
    `Kernels.experts_swiglu`."""
    return _experts_native(native, x, weights, experts, w_in, w_out, gated=False)


def _experts_native(
    native: Native,
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: ExpertWeight,
    w_out: ExpertWeight,
    gated: bool,
) -> Tensor:
    rows, top_k = experts.shape
    count, width, inner = w_out.shape
    up, up_scale, up_group, up_integers = _parts(w_in)
    down, down_scale, down_group, down_integers = _parts(w_out)
    dtype = w_in.dtype
    if w_out.dtype != dtype:
        raise ValueError(f"experts of {dtype} and {w_out.dtype}: expected one dtype")
    gathered, activated = (native.empty(rows * top_k, -(-n // 32) * 32) for n in (width, inner))
    outer, y = native.empty(rows * top_k, width), native.empty(rows, width)
    order = native.empty(rows * top_k + 2 * count + 2, dtype=torch.int64)
    native.call(
        "experts",
        x=x,
        weights=weights,
        chosen=experts,
        up=up,
        down=down,
        up_scale=up_scale,
        down_scale=down_scale,
        gathered=gathered,
        activated=activated,
        outer=outer,
        order=order,
        y=y,
        up_group=up_group,
        down_group=down_group,
        up_integers=int(up_integers),
        down_integers=int(down_integers),
        rows=rows,
        width=width,
        inner=inner,
        experts=count,
        top_k=top_k,
        x_stride=x.stride(0),
        dtype=DTYPES[dtype],
        gated=int(gated),
    )
    return y


def _parts(weight: ExpertWeight) -> tuple[Tensor, Tensor | None, int, bool]:
    """Return the matrices as the library reads them, their scales, the columns that share one
    (0 where there are none), and whether they are expanded from
    integers.
    """
    if isinstance(weight, EightBitExperts):
        return weight.values, weight.scales, weight.group, weight.integers
    if isinstance(weight, Fp8Words):
        raise TypeError("the native library's experts lie row by row; see EightBitExperts")
    return weight, None, 0, False


def _through_experts(
    x: Tensor,
    weights: Tensor,
    experts: Tensor,
    w_in: ExpertWeight,
    w_out: ExpertWeight,
    activation: Callable[[Tensor], Tensor],
) -> Tensor:
    w_in, w_out = (w if isinstance(w, Tensor) else w.dense() for w in (w_in, w_out))
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


def route_softmax_topk_ref(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Compute route_softmax_topk in float64. For tests."""
    experts = router_logits.double().argsort(descending=True)[:, :top_k]
    return router_logits.double().gather(1, experts).softmax(dim=1), experts


def experts_swiglu_ref(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Tensor, w_out: Tensor
) -> Tensor:
    """Compute experts_swiglu token by token in float64; returns float64 [T, H]. For tests."""
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
    """Compute route_sigmoid_grouped token by token in float64. For tests."""
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
    """Compute route_softmax_grouped token by token in float64. For tests."""
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
    """Compute experts_relu2 token by token in float64; returns float64 [T, H]. For tests."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, (chosen, by) in enumerate(zip(experts, weights.double(), strict=True)):
        for expert, weight in zip(chosen, by, strict=True):
            inner = F.relu(w_in[expert].double() @ x[t].double()).square()
            out[t] += weight * (w_out[expert].double() @ inner)
    return out
