"""The steps from logits to tokens on a GPU, without a sort; see baton.kernels.sampling."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.sampling import IN_PROMPT
from baton.kernels.triton.arithmetic import log1p
from baton.kernels.triton.kernel import kernel
from baton.kernels.triton.philox import uniform
from baton.kernels.triton.shapes import block, packed

_TOKENS = 8192  # logits of one row that are looked at together; half as many by filters
_LIKELY, _PLACES = 1024, 2048  # tokens that filters should gather, at least, and have room for
_PENALISED = 1024


def add_token_counts(counts: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Implement `Kernels.add_token_counts`."""
    if rows.shape[0]:
        _count[(triton.cdiv(rows.shape[0], _PENALISED),)](
            counts, rows, token_ids, rows.shape[0], counts.stride(0),
            BLOCK=_PENALISED, num_warps=4,
        )  # fmt: skip


@kernel
def _count(counts, rows, token_ids, number, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < number
    row, token = tl.load(rows + i, mask=inside, other=0), tl.load(token_ids + i, mask=inside)
    tl.atomic_add(counts + row * stride + token, 1, mask=inside)


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    counts: Tensor,
    count_rows: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Implement `Kernels.apply_penalties`."""
    vocab = logits.shape[1]
    if rows.shape[0]:
        _penalise[(triton.cdiv(vocab, _PENALISED), rows.shape[0])](
            packed(logits), rows, counts, count_rows, repetition, presence, frequency,
            logits.stride(0), counts.stride(0), vocab, PROMPT=IN_PROMPT, BLOCK=_PENALISED,
            num_warps=4,
        )  # fmt: skip


@kernel
def _penalise(
    logits, rows, counts, count_rows, repetition, presence, frequency, stride, count_stride, vocab,
    PROMPT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1).to(tl.int64)
    inside = token < vocab
    place = logits + tl.load(rows + row) * stride + token
    value = tl.load(place, mask=inside, other=0.0)
    marks = counts + tl.load(count_rows + row) * count_stride + token
    seen = tl.load(marks, mask=inside, other=0)
    produced = seen & (PROMPT - 1)
    factor = tl.load(repetition + row)
    repeated = tl.where(value > 0, value / factor, value * factor)
    value = tl.where(seen > 0, repeated, value)
    value -= tl.load(frequency + row) * produced
    value -= tl.load(presence + row) * (produced > 0)
    tl.store(place, value, mask=inside)


def sample_tokens(
    logits: Tensor,
    rows: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    filters: tuple[Tensor, ...] | None,
) -> Tensor:
    """Implement `Kernels.sample_tokens`. A row's filters are thresholds, each found by
    halving the range of float32 sixteen times into quarters: among the likeliest tokens, which are
    gathered first, or where these are too few, among all of them.
    """
    tokens = logits.argmax(dim=-1)
    vocab = logits.shape[1]
    top_k, top_p, min_p = filters if filters is not None else (None, None, None)
    if rows.shape[0]:
        places, together = (_PLACES, _TOKENS // 2) if filters is not None else (0, _TOKENS)
        values = logits.new_empty((rows.shape[0], places))
        ids = torch.empty_like(values, dtype=torch.int32)
        _sample[(rows.shape[0],)](
            packed(logits), rows, temperature, seeds, positions, top_k, top_p, min_p, values, ids,
            tokens, logits.stride(0), vocab, BLOCK=min(together, block(vocab)), LIKELY=_LIKELY,
            PLACES=places, num_warps=16,
        )  # fmt: skip
    return tokens


@triton.jit
def _order(x):
    """Map float32 x to integers from 0 to 2^32 - 1 in the same order: int64."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64) + 2147483648


@triton.jit
def _row_block(row, first, vocab, temperature, BLOCK: tl.constexpr):
    """Return token ids [BLOCK] int32, and their logits over the temperature; -inf past the
    vocabulary."""
    token = first + tl.arange(0, BLOCK)
    logit = tl.load(row + token, mask=token < vocab, other=float("-inf"))
    return token, logit / temperature


@triton.jit
def _count_from(row, vocab, temperature, low, high, highest, BLOCK: tl.constexpr):
    """Count the logits of order low or above, high or above, highest or above. Threads count
    apart until the end: a sum over all of them is a barrier.
    """
    some = tl.zeros((BLOCK,), tl.int32)
    fewer, fewest = some, some
    for first in range(0, vocab, BLOCK):
        token, x = _row_block(row, first, vocab, temperature, BLOCK)
        order = tl.where(token < vocab, _order(x), -1)
        some += (order >= low).to(tl.int32)
        fewer += (order >= high).to(tl.int32)
        fewest += (order >= highest).to(tl.int32)
    return tl.sum(some, axis=0), tl.sum(fewer, axis=0), tl.sum(fewest, axis=0)


@triton.jit
def _mass_above(row, vocab, temperature, best, floor, low, high, highest, BLOCK: tl.constexpr):
    """Sum exp(x - best) over logits of at least floor, of an order above each of the three."""
    most = tl.zeros((BLOCK,), tl.float32)
    less, least = most, most
    for first in range(0, vocab, BLOCK):
        _, x = _row_block(row, first, vocab, temperature, BLOCK)
        order = _order(x)
        weight = tl.where(x >= floor, tl.exp(x - best), 0.0)
        most += tl.where(order > low, weight, 0.0)
        less += tl.where(order > high, weight, 0.0)
        least += tl.where(order > highest, weight, 0.0)
    return tl.sum(most, axis=0), tl.sum(less, axis=0), tl.sum(least, axis=0)


@triton.jit
def _kth_largest(row, vocab, temperature, k, BLOCK: tl.constexpr):
    """Return the order of the k-th largest logit."""
    found = tl.zeros((), tl.int64)
    for step in range(16):
        quarter = tl.full((), 1, tl.int64) << (30 - 2 * step)
        some, fewer, fewest = _count_from(
            row, vocab, temperature, found + quarter, found + 2 * quarter, found + 3 * quarter,
            BLOCK,
        )  # fmt: skip
        reached = (some >= k).to(tl.int64) + (fewer >= k).to(tl.int64) + (fewest >= k).to(tl.int64)
        found += reached * quarter
    return found


@triton.jit
def _nucleus(
    row, vocab, temperature, best, floor, kth, tied, wanted, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the order of the least likely token that is kept, where the kept ones above it have
    less than `wanted` of mass; and that mass. `tied`: mass of the tokens kept at the k-th largest.
    """
    above = tl.zeros((), tl.int64)  # the largest order that has `wanted` above it
    for step in range(16):
        quarter = tl.full((), 1, tl.int64) << (30 - 2 * step)
        low, high, highest = above + quarter, above + 2 * quarter, above + 3 * quarter
        most, less, least = _mass_above(
            row, vocab, temperature, best, floor, tl.maximum(low, kth), tl.maximum(high, kth),
            tl.maximum(highest, kth), BLOCK,
        )  # fmt: skip
        most += tl.where(low < kth, tied, 0.0)
        less += tl.where(high < kth, tied, 0.0)
        least += tl.where(highest < kth, tied, 0.0)
        enough = (most >= wanted).to(tl.int64) + (less >= wanted).to(tl.int64)
        above += (enough + (least >= wanted).to(tl.int64)) * quarter
    cut = above + 1
    mass, _, _ = _mass_above(
        row, vocab, temperature, best, floor, tl.maximum(cut, kth), cut, cut, BLOCK
    )
    return cut, mass + tl.where(cut < kth, tied, 0.0)


@triton.jit
def _likeliest(row, vocab, temperature, wanted, BLOCK: tl.constexpr):
    """Return the largest logit, and an order that at least `wanted` tokens reach, or all of them;
    hardly more do. One look at the vocabulary: of BLOCK classes of tokens, the `wanted`-th largest
    of their largest.
    """
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for first in range(0, vocab, BLOCK):
        _, x = _row_block(row, first, vocab, temperature, BLOCK)
        largest = tl.maximum(largest, x)
    orders = _order(largest)
    found = tl.zeros((), tl.int64)
    for step in range(16):
        quarter = tl.full((), 1, tl.int64) << (30 - 2 * step)
        for _ in tl.static_range(3):
            reached = tl.sum((orders >= found + quarter).to(tl.int32), axis=0)
            found += tl.where(reached >= wanted, quarter, 0)
    return tl.max(largest, axis=0), found


@triton.jit
def _gather(
    row, vocab, temperature, best, floor, likely, values, ids, BLOCK: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """Put the logits of order `likely` or above, and their token ids, one behind the other, PLACES
    of them at most. Return how many there are, the mass exp(x - best) of all tokens that are at
    least `floor`, and that of these.
    """
    number = tl.zeros((), tl.int32)
    whole = tl.zeros((BLOCK,), tl.float32)
    mass = whole
    for first in range(0, vocab, BLOCK):
        token, x = _row_block(row, first, vocab, temperature, BLOCK)
        chosen = (_order(x) >= likely) & (token < vocab)
        place = number + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(values + place, x, mask=chosen & (place < PLACES))
        tl.store(ids + place, token, mask=chosen & (place < PLACES))
        number += tl.sum(chosen.to(tl.int32), axis=0)
        weight = tl.where(x >= floor, tl.exp(x - best), 0.0)
        whole += weight
        mass += tl.where(chosen, weight, 0.0)
    return number, tl.sum(whole, axis=0), tl.sum(mass, axis=0)


@triton.jit
def _float_of(order):
    """Return the float32 that has this order."""
    bits = (order - 2147483648).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@kernel
def _sample(
    logits,
    rows,
    row_temperatures,
    row_seeds,
    positions,
    row_top_ks,
    row_top_ps,
    row_min_ps,
    values,
    ids,
    tokens,
    stride,
    vocab,
    BLOCK: tl.constexpr,
    LIKELY: tl.constexpr,
    PLACES: tl.constexpr,
):
    """Sample one row: find its thresholds, then the largest sum of logit and noise that they
    leave.

    values [n, PLACES] float32, ids [n, PLACES] int32: room for each row's likeliest tokens.
    """
    n = tl.program_id(0)
    which = tl.load(rows + n)
    row = logits + which * stride
    temperature = tl.load(row_temperatures + n)
    seed, position = tl.load(row_seeds + n), tl.load(positions + n)

    cut = tl.full((), -1, tl.int64)  # orders above it are kept, and `ties` of those equal to it
    ties = tl.full((), 0, tl.int32)
    floor = tl.full((), float("-inf"), tl.float32)
    count = vocab + ties  # tokens among which those that are kept are
    gathered = tl.full((), 0, tl.int32)  # these are the likeliest, put together
    values += n * PLACES
    ids += n * PLACES
    if row_top_ks is not None:
        share = tl.load(row_min_ps + n)
        k, p = tl.load(row_top_ks + n).to(tl.int32), tl.load(row_top_ps + n)
        if (k > 0) | (p < 1.0) | (share > 0.0):
            wanted = tl.minimum(tl.maximum(k, LIKELY), vocab)
            best, likely = _likeliest(row, vocab, temperature, wanted, BLOCK)
            if share > 0.0:
                floor = tl.minimum(best + tl.log(share), best)
            number, whole, mass = _gather(
                row, vocab, temperature, best, floor, likely, values, ids, BLOCK, PLACES
            )
            tl.debug_barrier()  # the program's threads read what others of them have put there
            # No probability at all still keeps the likeliest token.
            p = tl.maximum(p, 1e-20)
            by_k = (k > 0) & (k <= number)
            by_p = (p < 1.0) & ((k <= 0) | (k >= vocab)) & (mass >= p * whole)
            if (number <= PLACES) & (by_k | by_p | (floor >= _float_of(likely))):
                row, count, gathered = values, number, gathered + 1
                temperature = temperature / temperature
            tied = 0.0
            if (k > 0) & (k < count):
                cut = _kth_largest(row, count, temperature, k, BLOCK)
                more, _, _ = _count_from(row, count, temperature, cut + 1, cut + 1, cut + 1, BLOCK)
                ties = k - more
                value = _float_of(cut)
                tied = tl.where(value >= floor, tl.exp(value - best) * ties, 0.0)
            if p < 1.0:
                kth = cut
                if kth >= 0:
                    whole, _, _ = _mass_above(
                        row, count, temperature, best, floor, kth, kth, kth, BLOCK
                    )
                wanted_mass = p * (whole + tied)
                last, mass = _nucleus(
                    row, count, temperature, best, floor, kth, tied, wanted_mass, BLOCK
                )
                if last >= kth:
                    each = tl.exp(_float_of(last) - best)
                    room = tl.ceil((wanted_mass - mass) / each).to(tl.int32)
                    ties = tl.where(last == kth, tl.minimum(ties, room), room)
                    cut = last

    winner = tl.full((), float("-inf"), tl.float32)
    chosen = tl.zeros((), tl.int32)
    passed = tl.full((), 0, tl.int32)  # tokens of order `cut` so far
    for first in range(0, count, BLOCK):
        token, x = _row_block(row, first, count, temperature, BLOCK)
        inside = token < count
        if gathered > 0:
            token = tl.load(ids + token, mask=inside, other=0)
        order = _order(x)
        tie = (order == cut).to(tl.int32)
        before = passed + tl.cumsum(tie, axis=0) - tie
        passed += tl.sum(tie, axis=0)
        kept = ((order > cut) | ((tie > 0) & (before < ties))) & (x >= floor) & inside
        # -log1p(-u) is exponential noise that keeps its precision near zero, where winners are.
        noise = -tl.log(-log1p(-uniform(seed, position, token)))
        value = tl.where(kept, x + noise, float("-inf"))
        top = tl.max(value, axis=0)
        where = tl.min(tl.where((value == top) & kept, token, vocab), axis=0)
        chosen = tl.where(top > winner, where, chosen)
        winner = tl.maximum(winner, top)
    tl.store(tokens + which, chosen)
