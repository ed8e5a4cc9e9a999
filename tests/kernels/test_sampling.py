"""Noise, penalties, filters and draws, each against its definition."""

import math

import pytest
import torch
from ragged_batches import seeded

from baton.kernels.philox import philox_4x32, vocabulary_uniform
from baton.kernels.sampling import (
    IN_PROMPT,
    add_token_counts,
    apply_penalties,
    filter_logits,
    log_probs,
    mask_tokens,
    sample_tokens,
    sample_tokens_native,
)

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    "counter, key, expected",
    [  # known answers of the Random123 library, kat_vectors, philox4x32 10
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter, key, expected):
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    words = philox_4x32((c0, c1, c2, c3), (k0, k1))
    assert tuple(word.item() for word in words) == expected


def test_noise_depends_on_seed_position_and_index_and_on_nothing_else():
    rng = seeded(0)
    seeds = [rng.randrange(-(2**63), 2**63) for _ in range(5)]
    positions = [rng.randrange(2**20) for _ in range(5)]
    together = vocabulary_uniform(torch.tensor(seeds), torch.tensor(positions), 103)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        alone = vocabulary_uniform(torch.tensor([seed]), torch.tensor([position]), 50)
        assert torch.equal(alone[0], together[row, :50])
    changed = vocabulary_uniform(torch.tensor([seeds[0]] * 3), torch.tensor([7, 8, 7]), 103)
    assert torch.equal(changed[0], changed[2]) and not torch.equal(changed[0], changed[1])
    # Both halves of the seed count.
    halves = vocabulary_uniform(torch.tensor([5, 5 + 2**40, -5]), torch.tensor([1, 1, 1]), 103)
    assert len({tuple(row.tolist()) for row in halves}) == 3


def test_noise_is_uniform_and_open_at_both_ends():
    uniform = vocabulary_uniform(torch.arange(40), torch.arange(40), 5000).flatten()
    assert 0 < uniform.min().item() and uniform.max().item() < 1
    counts = uniform.histc(50, 0, 1)
    expected = uniform.numel() / 50
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_squared < 94  # 49 degrees of freedom: one in 10,000 by chance, and the seeds are set


def draw(logits, temperature, seeds, filters=None, positions=None):
    rows = logits.shape[0]
    return sample_tokens(
        logits,
        torch.arange(rows),
        torch.full((rows,), temperature),
        seeds,
        torch.zeros(rows, dtype=torch.int64) if positions is None else positions,
        filters,
    )


def test_draws_follow_the_softmax_at_temperature():
    seeded(1)
    logits = torch.randn(7)
    n = 20_000
    tokens = draw(logits.expand(n, 7), 0.7, torch.arange(n))
    frequencies = tokens.bincount(minlength=7) / n
    expected = (logits / 0.7).softmax(dim=0)
    assert (frequencies - expected).abs().max().item() < 4 * math.sqrt(0.25 / n)


def test_a_draw_does_not_depend_on_the_row_or_on_its_neighbours():
    seeded(2)
    logits = torch.randn(6, 40)
    seeds, positions = torch.arange(6) + 100, torch.arange(6) * 3
    together = draw(logits, 1.0, seeds, positions=positions)
    order = torch.tensor([4, 0, 5])
    some = draw(logits[order], 1.0, seeds[order], positions=positions[order])
    assert torch.equal(some, together[order])


def test_rows_that_do_not_sample_take_the_likeliest_token():
    seeded(3)
    logits = torch.randn(5, 30)
    rows = torch.tensor([1, 4])
    tokens = sample_tokens(
        logits, rows, torch.ones(2) * 5, torch.tensor([1, 2]), torch.tensor([0, 0]), None
    )
    greedy = torch.tensor([0, 2, 3])
    assert torch.equal(tokens[greedy], logits.argmax(dim=-1)[greedy])
    assert torch.equal(tokens[rows], draw(logits[rows], 5.0, torch.tensor([1, 2])))
    none = torch.empty(0, dtype=torch.int64)
    all_greedy = sample_tokens(logits, none, torch.empty(0), none, none, None)
    assert torch.equal(all_greedy, logits.argmax(dim=-1))


def reference_filter(logits: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    order = sorted(range(len(logits)), key=lambda v: (-logits[v], v))
    kept = order[:top_k] if top_k > 0 else order
    top = logits[order[0]]
    kept = [v for v in kept if math.exp(logits[v] - top) >= min_p]
    total = sum(math.exp(logits[v] - top) for v in kept)
    chosen: list[int] = []
    mass = 0.0
    for v in kept:
        if chosen and top_p < 1 and mass >= top_p:
            break
        chosen.append(v)
        mass += math.exp(logits[v] - top) / total
    return set(chosen)


def test_filters_keep_what_their_definitions_keep():
    rng = seeded(4)
    parameters = [
        (rng.choice([0, 1, 5, 100]), rng.choice([0.05, 0.6, 0.95, 1.0]), rng.choice([0, 0.02, 1.0]))
        for _ in range(60)
    ]
    logits = torch.randn(60, 33) * 2
    filtered = filter_logits(
        logits,
        torch.tensor([k for k, _, _ in parameters]),
        torch.tensor([p for _, p, _ in parameters]),
        torch.tensor([m for _, _, m in parameters], dtype=torch.float32),
    )
    for row, (top_k, top_p, min_p) in enumerate(parameters):
        kept = set(torch.nonzero(filtered[row] > -torch.inf).flatten().tolist())
        assert kept == reference_filter(logits[row].tolist(), top_k, top_p, min_p)
        ids = sorted(kept)
        assert torch.equal(filtered[row, ids], logits[row, ids])


def test_neutral_filters_leave_every_token():
    seeded(5)
    logits = torch.randn(4, 5000) * 10
    filtered = filter_logits(
        logits, torch.zeros(4, dtype=torch.int64), torch.ones(4), torch.zeros(4)
    )
    assert torch.equal(filtered, logits)


def test_equal_logits_are_cut_at_exactly_k_in_vocabulary_order():
    filtered = filter_logits(torch.zeros(1, 9), torch.tensor([4]), torch.ones(1), torch.zeros(1))
    assert torch.equal(filtered > -torch.inf, (torch.arange(9) < 4)[None])


def test_filtered_draws_come_from_what_is_left():
    seeded(6)
    logits = torch.randn(1, 50).expand(300, 50)
    filters = (torch.full((300,), 3), torch.ones(300), torch.zeros(300))
    tokens = draw(logits, 3.0, torch.arange(300), filters)
    assert set(tokens.tolist()) == set(logits[0].topk(3).indices.tolist())


def test_penalties_follow_their_formulas_in_the_rows_that_ask():
    rng = seeded(7)
    logits = torch.randn(4, 12)
    before = logits.clone()
    rows = torch.tensor([3, 1])
    prompts, outputs = [[0, 5, 5], [2]], [[5, 7, 7, 7], []]
    counts, count_rows = torch.zeros(5, 12, dtype=torch.int32), torch.tensor([4, 2])
    pairs = [(count_rows[row], token) for row, tokens in enumerate(outputs) for token in tokens]
    rng.shuffle(pairs)
    add_token_counts(counts, *torch.tensor(pairs).T)
    assert counts[4, 7].item() == 3 and counts.sum() == 4
    for row, tokens in zip(count_rows, prompts, strict=True):
        counts[row, list(set(tokens))] += IN_PROMPT
    counts[0] = IN_PROMPT + 9  # another request's
    repetition = torch.tensor([1.5, 2.0])
    presence, frequency = torch.tensor([0.4, -1.0]), torch.tensor([0.3, 0.0])
    apply_penalties(logits, rows, counts, count_rows, repetition, presence, frequency)
    for n, row in enumerate(rows.tolist()):
        for token in range(12):
            value = before[row, token].item()
            if token in prompts[n] or token in outputs[n]:
                factor = repetition[n].item()
                value = value / factor if value > 0 else value * factor
            count = outputs[n].count(token)
            value -= frequency[n].item() * count + presence[n].item() * (count > 0)
            assert logits[row, token].item() == pytest.approx(value, abs=1e-5)
    assert torch.equal(logits[[0, 2]], before[[0, 2]])


def test_masked_tokens_are_never_drawn():
    logits = torch.zeros(100, 5)
    rows = torch.arange(100)
    mask_tokens(logits, rows, torch.tensor([[1, 3, 1]]).expand(100, 3), rows < 90)
    drawn = draw(logits, 1.0, rows)
    assert set(drawn[:90].tolist()) == {0, 2, 4}
    assert torch.equal(logits[90:], torch.zeros(10, 5))


@pytest.mark.parametrize("top_n", [0, 4, 20, 100])
def test_log_probabilities_are_of_the_raw_distribution(top_n):
    seeded(8)
    logits = torch.randn(5, 20) * 4
    tokens = torch.tensor([3, 19, 0, 7, 7])
    asked = torch.randint(20, (5, top_n))
    result = log_probs(logits, tokens, top_n, asked)
    expected = logits.double().log_softmax(dim=-1)
    chosen = expected[torch.arange(5), tokens]
    torch.testing.assert_close(result.chosen.double(), chosen, atol=1e-5, rtol=1e-5)
    values, ids = expected.topk(min(top_n, 20), dim=-1)
    torch.testing.assert_close(result.top_values.double(), values, atol=1e-5, rtol=1e-5)
    assert torch.equal(result.top_ids, ids)
    others = expected.gather(1, asked)
    torch.testing.assert_close(result.asked.double(), others, atol=1e-5, rtol=1e-5)


def wide_draws(rng, rows, vocab, tied):
    """Filters of every kind, alone and together, over logits like a model's; `tied`: on a grid."""
    logits = torch.randn(rows, vocab) * 3
    logits = (logits * 2).round() / 2 if tied else logits
    logits[:, rng.randrange(vocab) :: 7] = -torch.inf  # ruled out before
    some = [
        (rng.choice([0, 1, 7, 50, vocab - 3, 2 * vocab]), rng.choice([0.02, 0.5, 0.95, 0.999, 1.0]),
         rng.choice([0.0, 0.0, 0.05, 1.0]))
        for _ in range(rows)
    ]  # fmt: skip
    top_k, top_p, min_p = zip(*some, strict=True)
    seeds = torch.randint(-(2**62), 2**62, (rows,))
    positions = torch.randint(0, 2**40, (rows,))
    filters = torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p)
    return logits, torch.rand(rows) * 2 + 0.3, seeds, positions, filters


@pytest.mark.parametrize("vocab", [2, 15, 333, 5000])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_native_draws_are_torchs(native, vocab, tied, filtered):
    """Some rows are greedy. A token may differ only where the two round noise, or the sum of
    probabilities at the edge of top-p, to different sides."""
    rng = seeded(vocab + tied)
    count = 60
    logits, temperature, seeds, positions, filters = wide_draws(rng, 2 * count, vocab, tied)
    rows = torch.tensor(rng.sample(range(2 * count), count))
    drawn = (rows, temperature[rows], seeds[rows], positions[rows])
    filters = tuple(each[rows] for each in filters) if filtered else None
    strided = torch.full((2 * count, vocab + 3), torch.nan)
    strided[:, :vocab] = logits
    tokens = sample_tokens_native(native, strided[:, :vocab], *drawn, filters)
    expected = sample_tokens(logits, *drawn, filters)
    assert (tokens != expected).sum() <= (1 if filtered else 0)
    greedy = torch.ones(2 * count, dtype=torch.bool)
    greedy[rows] = False
    assert torch.equal(tokens[greedy], logits.argmax(dim=-1)[greedy])


def test_native_filters_keep_what_their_definitions_keep(native):
    """Many draws find every likely token that is kept, and no token that is not."""
    rng = seeded(21)
    n, vocab = 3000, 33
    for _ in range(12):
        logits = (torch.randn(vocab) * 4).round() / 2
        top_k, top_p, min_p = (
            rng.choice([0, 1, 5]),
            rng.choice([0.3, 0.8, 1.0]),
            rng.choice([0, 0.1]),
        )
        filters = torch.full((n,), top_k), torch.full((n,), top_p), torch.full((n,), float(min_p))
        each = torch.arange(n)
        ones, zeros = torch.ones(n), torch.zeros(n, dtype=torch.int64)
        tokens = sample_tokens_native(
            native, logits.expand(n, vocab), each, ones, each, zeros, filters
        )
        kept = reference_filter(logits.tolist(), top_k, top_p, min_p)
        found = set(tokens.tolist())
        likely = {v for v in kept if logits[v] > logits.max() - 4}
        assert likely <= found <= kept


def test_a_native_draw_is_the_same_in_every_batch(native):
    rng = seeded(22)
    logits, temperature, seeds, positions, filters = wide_draws(rng, 20, 777, tied=False)
    together = sample_tokens_native(
        native, logits, torch.arange(20), temperature, seeds, positions, filters
    )
    for row in range(20):
        alone = slice(row, row + 1)
        one = (temperature[alone], seeds[alone], positions[alone])
        some = (filters[0][alone], filters[1][alone], filters[2][alone])
        token = sample_tokens_native(native, logits[alone], torch.tensor([0]), *one, some)
        assert token.tolist() == together[alone].tolist()


def test_native_noise_is_the_same_bits(native):
    """A vocabulary whose logits are all alike is sampled by its noise alone."""
    rng = seeded(23)
    seeds = torch.tensor([-5, 2**63 - 1, 12, rng.randrange(2**62)])
    positions = torch.tensor([0, 2**33 + 1, 7, 1])
    noise = vocabulary_uniform(seeds, positions, 4001)
    arguments = (torch.zeros(4, 4001), torch.arange(4), torch.ones(4), seeds, positions, None)
    assert torch.equal(sample_tokens_native(native, *arguments), noise.argmin(dim=1))


def test_native_draws_survive_logits_that_are_no_numbers(native):
    logits = torch.full((2, 50), torch.nan)
    logits[1] = -torch.inf
    filters = torch.tensor([5, 5]), torch.tensor([0.5, 0.5]), torch.tensor([0.1, 0.1])
    each = torch.arange(2)
    tokens = sample_tokens_native(native, logits, each, torch.ones(2), each, each, filters)
    assert all(0 <= token < 50 for token in tokens.tolist())
