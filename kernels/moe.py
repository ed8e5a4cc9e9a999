"""Mixture of experts: routing and the experts' feed-forward, without expert counts on the host."""

import torch
import torch.nn.functional as F
from torch import Tensor


def route_softmax_topk(router_logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The top-k experts of each token, weighted by a softmax over their own logits (Granite).

    router_logits: [T, E] float
    returns weights [T, top_k] float32 and experts [T, top_k] int64
    """
    logits, experts = router_logits.float().topk(top_k, dim=-1)
    return logits.softmax(dim=-1), experts


def experts_swiglu(
    x: Tensor, weights: Tensor, experts: Tensor, w_in: Tensor, w_out: Tensor
) -> Tensor:
    """Each token through its experts, `w_out(silu(gate) * up)`, summed by its routing weights.

    x:       [T, H] float
    weights: [T, K] float32
    experts: [T, K] int64, index into E
    w_in:    [E, 2 I, H] float; the gate's rows, then those of the up projection
    w_out:   [E, H, I], dtype of w_in; rows of both must be a multiple of 16 bytes
    returns  [T, H], dtype of x
    """
    tokens, top_k = experts.shape
    ordered, order = experts.flatten().sort(stable=True)
    # Where each expert's run ends in the sorted order; the grouped product reads it on the device.
    every_expert = torch.arange(w_in.shape[0], device=x.device)
    ends = torch.searchsorted(ordered, every_expert, right=True, out_int32=True)
    inner = F.grouped_mm(x[order // top_k].to(w_in.dtype), w_in.transpose(1, 2), offs=ends)
    gate, up = inner.chunk(2, dim=-1)
    outer = F.grouped_mm(F.silu(gate) * up, w_out.transpose(1, 2), offs=ends)
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
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t, logits in enumerate(router_logits.double()):
        chosen = logits.argsort(descending=True)[:top_k]
        for weight, expert in zip(logits[chosen].softmax(dim=0), chosen, strict=True):
            gate, up = (w_in[expert].double() @ x[t].double()).chunk(2)
            out[t] += weight * (w_out[expert].double() @ (F.silu(gate) * up))
    return out
