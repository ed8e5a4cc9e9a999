"""Mixtures of experts on a GPU against token-by-token float64 references."""

import pytest
import torch
from ragged_batches import seeded
from triton_device import BOUND, assert_near, here

from baton.kernels.moe import (
    experts_relu2_ref,
    experts_swiglu_ref,
    route_sigmoid_grouped_ref,
    route_softmax_grouped_ref,
    route_softmax_topk_ref,
)
from baton.kernels.triton import moe_routing
from baton.kernels.triton.moe import experts_relu2, experts_swiglu
from baton.kernels.triton.moe_routing import (
    assign,
    route_sigmoid_grouped,
    route_softmax_grouped,
    route_softmax_topk,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens, experts", [(1, 4), (37, 3)])
def test_granites_mixture_matches_the_reference(tokens, experts, dtype):
    seeded(tokens)
    x, logits = torch.randn(tokens, 24).to(dtype), torch.randn(tokens, experts)
    w_in = (torch.randn(experts, 40, 24) / 5).to(dtype)
    w_out = (torch.randn(experts, 24, 20) / 5).to(dtype)
    weights, chosen = route_softmax_topk(here(logits), 2)
    y = experts_swiglu(here(x), weights, chosen, here(w_in), here(w_out))
    assert y.dtype == dtype
    expected = experts_swiglu_ref(x, *route_softmax_topk_ref(logits, 2), w_in, w_out)
    assert_near(y, expected, BOUND[dtype])


def test_experts_without_a_gate_match_the_reference():
    seeded(2)
    x, w_in, w_out = torch.randn(9, 20), torch.randn(5, 33, 20), torch.randn(5, 20, 33)
    weights, experts = torch.rand(9, 3), torch.randint(0, 2, (9, 3))  # three have no token
    y = experts_relu2(*here((x, weights, experts, w_in, w_out)))
    assert_near(y, experts_relu2_ref(x, weights, experts, w_in, w_out), BOUND[torch.float32])


@pytest.mark.parametrize("groups, top_groups, normalised", [(1, 1, True), (4, 2, False)])
def test_grouped_routing_matches_the_reference(groups, top_groups, normalised):
    seeded(groups)
    logits, correction = torch.randn(11, 12), torch.randn(12)
    options = (3, groups, top_groups, normalised, 2.5)
    weights, experts = route_sigmoid_grouped(here(logits), here(correction), *options)
    expected, chosen = route_sigmoid_grouped_ref(logits, correction, *options)
    assert torch.equal(experts.cpu(), chosen)
    assert_near(weights, expected, 1e-6)
    weights, experts = route_softmax_grouped(here(logits), *options)
    expected, chosen = route_softmax_grouped_ref(logits, *options)
    assert torch.equal(experts.cpu(), chosen)
    assert_near(weights, expected, 1e-6)


def test_a_softmaxs_groups_are_chosen_by_their_likeliest_expert_alone():
    logits = torch.tensor([[3.0, -9.0, 2.5, 2.5, 2.9, -9.0]])  # by two of each, the second is first
    _, experts = route_softmax_grouped(here(logits), 2, 3, 2)
    assert experts.tolist() == [[0, 4]]


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize(("tokens", "count"), [(50, 7), (150, 7), (130, 40)])
def test_every_pair_has_one_place_in_a_block_of_its_expert(
    tokens: int, count: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the experts have nothing. Those that are no expert's have no place."""
    monkeypatch.setattr(moe_routing, "_FEW_PAIRS", 1 << 20 if few else 0)
    seeded(3)
    total = 2 * tokens
    experts = torch.randint(0, count - 1, (tokens, 2)) // 2 * 2
    experts[5, 1] = count + 3
    made = assign(here(experts), count, 16)
    owners, pairs = made.experts.cpu(), made.pairs.cpu().view(-1, 16)
    owned = pairs[owners >= 0]
    placed = owned[owned < total].tolist()
    assert sorted(placed) == [pair for pair in range(total) if pair != 11]
    assert (owned <= total).all() and (owned >= 0).all()
    for owner, block in zip(owners.tolist(), pairs, strict=True):
        real = block[block < total] if owner >= 0 else block[:0]
        assert (experts.flatten()[real] == owner).all()
        assert owner < 0 or len(real)
    by_expert = experts.flatten()[placed]
    assert placed == sorted(placed, key=lambda pair: (int(experts.flatten()[pair]), pair))
    assert by_expert.tolist() == sorted(by_expert.tolist())
    assert (owners < 0).nonzero()[:, 0].tolist() == list(range((owners >= 0).sum(), len(owners)))
