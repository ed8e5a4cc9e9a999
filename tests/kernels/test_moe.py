"""Experts against a token-by-token float64 reference."""

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.moe import (
    experts_relu2,
    experts_relu2_native,
    experts_relu2_ref,
    experts_swiglu,
    experts_swiglu_native,
    experts_swiglu_ref,
    route_sigmoid_grouped,
    route_sigmoid_grouped_native,
    route_sigmoid_grouped_ref,
    route_softmax_grouped,
    route_softmax_grouped_native,
    route_softmax_grouped_ref,
    route_softmax_topk,
    route_softmax_topk_native,
    route_softmax_topk_ref,
)
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native


@pytest.fixture(scope="module")
def native() -> Native:
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    return Native(library)


def random_experts(experts: int, hidden: int, inner: int) -> tuple[torch.Tensor, torch.Tensor]:
    w_in = torch.randn(experts, 2 * inner, hidden) / hidden**0.5
    return w_in, torch.randn(experts, hidden, inner) / inner**0.5


def mixture(x, logits, w_in, w_out, top_k):
    return experts_swiglu(x, *route_softmax_topk(logits, top_k), w_in, w_out)


def mixture_ref(x, logits, w_in, w_out, top_k):
    return experts_swiglu_ref(x, *route_softmax_topk_ref(logits, top_k), w_in, w_out)


@pytest.mark.parametrize("tokens", [0, 1, 3, 50])
@pytest.mark.parametrize("experts, top_k", [(4, 1), (7, 3), (5, 5)])
def test_a_mixture_matches_the_reference(tokens, experts, top_k):
    seeded(tokens * 10 + top_k)
    w_in, w_out = random_experts(experts, 12, 20)
    x, logits = torch.randn(tokens, 12), torch.randn(tokens, experts) * 2
    out = mixture(x, logits, w_in, w_out, top_k)
    expected = mixture_ref(x, logits, w_in, w_out, top_k)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_all_tokens_may_choose_one_expert_and_poisoned_experts_stay_out():
    seeded(1)
    w_in, w_out = random_experts(6, 8, 16)
    w_in[[0, 1, 3, 5]] = torch.nan
    x, logits = torch.randn(9, 8), torch.zeros(9, 6)
    logits[:, 2], logits[:, 4] = 5.0, 4.0
    out = mixture(x, logits, w_in, w_out, 2)
    expected = mixture_ref(x, logits, w_in, w_out, 2)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_bfloat16_weights_give_bfloat16_close_to_the_reference():
    seeded(2)
    w_in, w_out = (w.bfloat16() for w in random_experts(4, 16, 24))
    x, logits = torch.randn(10, 16).bfloat16(), torch.randn(10, 4)
    out = mixture(x, logits, w_in, w_out, 2)
    assert out.dtype == torch.bfloat16
    expected = mixture_ref(x, logits, w_in, w_out, 2)
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


@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("experts, top_k", [(1, 1), (7, 3), (64, 8)])
def test_native_softmax_routing_is_torch_s(native, rows, experts, top_k):
    logits = torch.randn(rows, experts) * 2
    weights, chosen = route_softmax_topk_native(native, logits, top_k)
    wanted_weights, wanted = route_softmax_topk(logits, top_k)
    assert torch.equal(chosen, wanted)
    torch.testing.assert_close(weights, wanted_weights, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(
    "experts, top_k, groups, top_groups",
    [(6, 2, 1, 1), (12, 3, 4, 2), (12, 4, 2, 1), (9, 3, 3, 3)],
)
def test_native_grouped_routing(native, experts, top_k, groups, top_groups, normalised):
    logits, correction = torch.randn(30, experts), torch.randn(experts) * 0.3
    options = (top_k, groups, top_groups, normalised, 2.5)
    corrected = route_sigmoid_grouped_native(native, logits, correction, *options)
    plain = route_softmax_grouped_native(native, logits, *options)
    for (weights, chosen), (wanted_weights, wanted) in (
        (corrected, route_sigmoid_grouped_ref(logits, correction, *options)),
        (plain, route_softmax_grouped_ref(logits, *options)),
    ):
        assert torch.equal(chosen, wanted)
        torch.testing.assert_close(weights.double(), wanted_weights, atol=1e-6, rtol=1e-5)


def test_native_routing_of_padding_names_experts_that_exist(native):
    nothing = torch.full((2, 6), torch.nan)
    nothing[1, 4] = 1.0
    _, chosen = route_softmax_topk_native(native, nothing, 3)
    assert chosen.tolist() == [[0, 1, 2], [4, 0, 1]]
    _, chosen = route_sigmoid_grouped_native(native, nothing, torch.zeros(6), 2, 3, 1)
    assert ((chosen >= 0) & (chosen < 6)).all()
    _, chosen = route_softmax_grouped_native(native, nothing, 2, 3, 1)
    assert ((chosen >= 0) & (chosen < 6)).all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [0, 1, 5, 120])
@pytest.mark.parametrize(
    "experts, top_k, hidden, inner", [(3, 1, 1, 1), (6, 2, 40, 100), (5, 5, 70, 65)]
)
@pytest.mark.parametrize("gated", [True, False])
def test_native_experts(native, tokens, experts, top_k, hidden, inner, gated, kind):
    rows = inner * (2 if gated else 1)
    shapes = ((experts, rows, hidden), (experts, hidden, inner))
    plain = [torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes]
    x, weights = torch.randn(tokens, 2 * hidden)[:, :hidden], torch.rand(tokens, top_k)
    chosen = torch.rand(tokens, experts).topk(top_k).indices
    w_in, w_out = (w.to(getattr(torch, kind)) for w in plain)
    run, ref = (
        (experts_swiglu_native, experts_swiglu_ref)
        if gated
        else (experts_relu2_native, experts_relu2_ref)
    )
    got = run(native, x, weights, chosen, w_in, w_out)
    # Where the CPU multiplies bfloat16 values, activations are rounded to them, inside too.
    error = 2e-2 if kind == "bfloat16" else 1e-5
    expected = ref(x, weights, chosen, w_in, w_out)
    torch.testing.assert_close(got.double(), expected, atol=error, rtol=error)
    for count in (1, 2, 4):  # whatever other tokens there are, the same bits
        fewer = run(native, x[:count], weights[:count], chosen[:count].contiguous(), w_in, w_out)
        assert torch.equal(fewer, got[:count])
