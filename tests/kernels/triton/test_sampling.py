"""Sampling against torch's: the same noise, the same tokens."""

import pytest
import torch
from ragged_batches import seeded
from triton_device import assert_near, here

from baton.kernels import sampling as torch_sampling
from baton.kernels.philox import vocabulary_uniform
from baton.kernels.triton import sampling

ROWS, VOCAB = 6, 301


def draw(logits, rows, filters):
    count = len(rows)
    temperature = torch.rand(count) + 0.5
    seeds = torch.randint(-(2**62), 2**62, (count,))
    positions = torch.randint(0, 2**40, (count,))
    arguments = (logits, torch.tensor(rows), temperature, seeds, positions, filters)
    tokens = sampling.sample_tokens(*here(arguments))
    return tokens.cpu(), torch_sampling.sample_tokens(*arguments), arguments


def test_without_filters_tokens_are_torchs_and_other_rows_are_greedy():
    seeded(0)
    logits = torch.randn(ROWS, VOCAB) * 3
    tokens, expected, _ = draw(logits, [4, 0, 2, 5], None)
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize("likely, places", [(1024, 2048), (8, 64), (8, 9)])
@pytest.mark.parametrize("seed", range(2))
def test_filtered_tokens_are_torchs(seed, likely, places, monkeypatch):
    """Logits on a coarse grid have ties everywhere; a token may differ only where the two sum
    probabilities to different sides of top-p. The likeliest tokens are all of them, some, or, with
    ties, too many for their places."""
    monkeypatch.setattr(sampling, "_LIKELY", likely)
    monkeypatch.setattr(sampling, "_PLACES", places)
    monkeypatch.setattr(sampling, "_TOKENS", 256)
    seeded(seed)
    logits = (torch.randn(ROWS, VOCAB) * 4).round() / 2 if seed % 2 else torch.randn(ROWS, VOCAB)
    logits[:, 7:20] = -torch.inf  # ruled out before
    top_k = torch.tensor([1, 5, 0, 400, 40, 0])
    top_p = torch.tensor([1.0, 0.7, 0.9, 0.5, 1.0, 0.0])
    min_p = torch.tensor([0.0, 0.0, 0.2, 0.0, 0.05, 0.0])
    tokens, expected, arguments = draw(logits, list(range(ROWS)), (top_k, top_p, min_p))
    assert torch.equal(tokens, expected), arguments


def test_no_token_that_the_filters_rule_out_is_drawn():
    """Flat logits make the allowed set known: the first tokens of the vocabulary."""
    seeded(9)
    count = 10
    logits = torch.zeros(count, 32)
    filters = (torch.full((count,), 10), torch.full((count,), 0.45), torch.zeros(count))
    tokens, expected, _ = draw(logits, list(range(count)), filters)
    assert torch.equal(tokens, expected)
    assert set(tokens.tolist()) <= {0, 1, 2, 3, 4}


def test_penalties_and_counts_match_torchs():
    seeded(1)
    logits, rows = torch.randn(ROWS, VOCAB), torch.tensor([3, 0])
    counts = torch.zeros(4, VOCAB, dtype=torch.int32)
    counts[:, ::7] = torch_sampling.IN_PROMPT
    marks = (torch.randint(0, 4, (40,)), torch.randint(0, VOCAB, (40,)))
    own = here(counts)
    sampling.add_token_counts(own, *here(marks))
    torch_sampling.add_token_counts(counts, *marks)
    assert torch.equal(own.cpu(), counts)
    count_rows = torch.tensor([2, 1])
    factors = (torch.tensor([1.3, 1.0]), torch.rand(2), torch.rand(2))
    out = here(logits)
    sampling.apply_penalties(out, *here((rows, counts, count_rows, *factors)))
    torch_sampling.apply_penalties(logits, rows, counts, count_rows, *factors)
    assert_near(out, logits, 1e-6)


def test_noise_is_the_same_bits():
    """A vocabulary whose logits are all alike is sampled by its noise alone: the
    least uniform number is the shortest exponential wait."""
    seeded(2)
    seeds, positions = torch.tensor([-5, 2**63 - 1, 12]), torch.tensor([0, 2**33 + 1, 7])
    ones = torch.ones(3)
    noise = vocabulary_uniform(seeds, positions, VOCAB)
    arguments = (torch.zeros(3, VOCAB), torch.arange(3), ones, seeds, positions, None)
    assert torch.equal(sampling.sample_tokens(*here(arguments)).cpu(), noise.argmin(dim=1))
