"""Experts against a token-by-token float64 reference."""

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.moe import (
    experts_relu2,
    experts_relu2_ref,
    moe_forward,
    moe_forward_ref,
    route_sigmoid_grouped,
    route_sigmoid_grouped_ref,
    route_softmax_grouped,
    route_softmax_grouped_ref,
)


def random_experts(experts: int, hidden: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    w_in = torch.randn(experts, 2 * inner, hidden) / hidden**0.5
    return w_in, torch.randn(experts, hidden, inner) / inner**0.5


@pytest.mark.parametrize("tokens", [0, 1, 3, 50])
@pytest.mark.parametrize("experts, top_k", [(4, 1), (7, 3), (5, 5)])
def test_a_mixture_matches_the_reference(tokens, experts, top_k):
    seeded(tokens * 10 + top_k)
    w_in, w_out = random_experts(experts, 12, 20)
    x, logits = torch.randn(tokens, 12), torch.randn(tokens, experts) * 2
    out = moe_forward(x, logits, w_in, w_out, top_k)
    expected = moe_forward_ref(x, logits, w_in, w_out, top_k)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_all_tokens_may_choose_one_expert_and_poisoned_experts_stay_out():
    seeded(1)
    w_in, w_out = random_experts(6, 8, 16)
    w_in[[0, 1, 3, 5]] = torch.nan
    x, logits = torch.randn(9, 8), torch.zeros(9, 6)
    logits[:, 2], logits[:, 4] = 5.0, 4.0
    out = moe_forward(x, logits, w_in, w_out, 2)
    expected = moe_forward_ref(x, logits, w_in, w_out, 2)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_weights_give_bfloat16_close_to_the_reference():
    seeded(2)
    w_in, w_out = (w.bfloat16() for w in random_experts(4, 16, 24))
    x, logits = torch.randn(10, 16).bfloat16(), torch.randn(10, 4)
    out = moe_forward(x, logits, w_in, w_out, 2)
    assert out.dtype == torch.bfloat16
    expected = moe_forward_ref(x, logits, w_in, w_out, 2)
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(
    "experts, top_k, groups, top_groups",
    [(6, 2, 1, 1), (12, 3, 4, 2), (12, 4, 2, 1), (9, 3, 3, 3)],
)
def test_grouped_routing_matches_the_reference(experts, top_k, groups, top_groups, normalised):
    seeded(experts + top_groups)
    logits, correction = torch.randn(30, experts), torch.randn(experts) * 0.3
    options = (top_k, groups, top_groups, normalised, 2.5)
    corrected = route_sigmoid_grouped(logits, correction, *options)
    plain = route_softmax_grouped(logits, *options)
    for (weights, chosen), (wanted_weights, wanted) in (
        (corrected, route_sigmoid_grouped_ref(logits, correction, *options)),
        (plain, route_softmax_grouped_ref(logits, *options)),
    ):
        assert torch.equal(chosen, wanted)
        torch.testing.assert_close(weights.double(), wanted_weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_experts_without_a_gate_match_the_reference(tokens):
    seeded(tokens)
    w_in, w_out = torch.randn(5, 20, 12) / 12**0.5, torch.randn(5, 12, 20) / 20**0.5
    x, weights = torch.randn(tokens, 12), torch.rand(tokens, 2)
    experts = torch.rand(tokens, 5).topk(2).indices
    out = experts_relu2(x, weights, experts, w_in, w_out)
    expected = experts_relu2_ref(x, weights, experts, w_in, w_out)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
