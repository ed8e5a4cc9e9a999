"""The steps from logits to tokens: penalties, filters, Gumbel-max sampling, log-probabilities.

All of it is batched over rows with a parameter tensor a row. Which rows need what is known on the
host (sampling parameters are), so index tensors of those rows say where work is done; nothing is
read back from the device.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from baton.kernels.native.recorder import Native
from baton.kernels.philox import vocabulary_uniform

IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt has it. No output is so long."""


class LogProbs(NamedTuple):
    """Log-probabilities: chosen [R] float32; top_values [R, n] float32, falling; top_ids [R, n]
    int64; asked [R, m] float32."""

    chosen: Tensor
    top_values: Tensor
    top_ids: Tensor
    asked: Tensor


def add_token_counts(counts: Tensor, rows: Tensor, token_ids: Tensor) -> None:
    """Implement `Kernels.add_token_counts` in torch."""
    ones = torch.ones_like(token_ids, dtype=counts.dtype)
    counts.index_put_((rows, token_ids), ones, accumulate=True)


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    counts: Tensor,
    count_rows: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> None:
    """Implement `Kernels.apply_penalties` in torch."""
    chosen = logits[rows]
    marks = counts.index_select(0, count_rows)
    output_counts = marks & (IN_PROMPT - 1)
    seen = marks > 0
    repeated = torch.where(chosen > 0, chosen / repetition[:, None], chosen * repetition[:, None])
    chosen = torch.where(seen, repeated, chosen)
    chosen -= frequency[:, None] * output_counts
    chosen -= presence[:, None] * (output_counts > 0)
    logits.index_copy_(0, rows, chosen)


def mask_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor, wanted: Tensor) -> None:
    """Rule tokens out, in place: end and stop tokens of rows below their minimum length.

    logits [R, V] float32; rows [n] int64 into R; token_ids [n, k] int64, those of each row; wanted
    [n] bool, rows whose tokens are ruled out
    """
    at = rows[:, None], token_ids
    logits.index_put_(at, logits[at].masked_fill_(wanted[:, None], -torch.inf))


def add_biases(logits: Tensor, rows: Tensor, token_ids: Tensor, biases: Tensor) -> None:
    """Add to single logits, in place.

    logits [R, V] float32; rows [n] int64 into R; token_ids [n] int64; biases [n] float32. No pair
    of row and token occurs twice.
    """
    logits.index_put_((rows, token_ids), biases, accumulate=True)


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Rule out all but the likely tokens: min-p and top-k, then top-p of what they leave.

    logits: [n, V] float32, temperature applied
    top_k:  [n] int64, keep the k largest (equals in vocabulary order); 0 is off
    top_p:  [n] float32, keep the smallest set that has this probability; 1 is off
    min_p:  [n] float32, keep tokens at least this fraction of the likeliest; 0 is off
    returns [n, V] float32, -inf where ruled out; the likeliest token always stays
    """
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[1], device=logits.device)
    keep = (ranks < top_k[:, None]) | (top_k[:, None] <= 0)
    keep &= ordered >= ordered[:, :1] + min_p.log()[:, None]
    probabilities = ordered.masked_fill(~keep, -torch.inf).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    keep &= (before < top_p[:, None]) | (top_p[:, None] >= 1.0)
    keep |= ranks == 0
    kept = ordered.masked_fill(~keep, -torch.inf)
    return torch.empty_like(logits).scatter_(1, ids, kept)


def sample_tokens(
    logits: Tensor,
    rows: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    filters: tuple[Tensor, ...] | None,
) -> Tensor:
    """Implement `Kernels.sample_tokens` in torch."""
    tokens = logits.argmax(dim=-1)
    if rows.shape[0] == 0:
        return tokens
    scaled = logits[rows] / temperature[:, None]
    if filters is not None:
        scaled = filter_logits(scaled, *filters)
    uniform = vocabulary_uniform(seeds, positions, logits.shape[1])
    # -log1p(-u) is exponential noise that keeps its precision near zero, where the winners are.
    gumbel = uniform.neg_().log1p_().neg_().log_().neg_()
    return tokens.index_copy_(0, rows, (scaled + gumbel).argmax(dim=-1))


def sample_tokens_native(
    native: Native,
    logits: Tensor,
    rows: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    filters: tuple[Tensor, ...] | None,
) -> Tensor:
    """Implement `Kernels.sample_tokens` natively, without a sort: filters look once at the whole
    vocabulary and then at the tokens beside their edge.

    A draw is torch's but for rounding: of the noise, by about 1e-7, and of the sum of probabilities
    at the edge of top_p.
    """
    count, vocab = rows.shape[0], logits.shape[1]
    if count < logits.shape[0]:
        tokens = logits.argmax(dim=-1)
    else:
        tokens = torch.empty(count, dtype=torch.int64)
    if not count:
        return tokens
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    rows, temperature = rows.contiguous(), temperature.contiguous()
    seeds, positions = seeds.contiguous(), positions.contiguous()
    top_k, top_p, min_p = (each.contiguous() for each in filters) if filters else (None,) * 3
    native.call(
        "sample_tokens",
        count == 1,
        logits=logits,
        rows=rows,
        temperature=temperature,
        seeds=seeds,
        positions=positions,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        tokens=tokens,
        count=count,
        vocab=vocab,
        stride=logits.stride(0),
    )
    return tokens


def allow_tokens(logits: Tensor, rows: Tensor, masks: Tensor) -> None:
    """Rule out, in place, every token that a row's mask does not allow.

    logits: [R, V] float32
    rows:   [n] int64 into R
    masks:  [n, W] int64; bit `i % 64` of word `i // 64` is set where token `i` may come
    """
    # In bytes, of which CPUs and GPUs have the lowest bits first: a word a bit would take eight
    # bytes a logit, more than a step's memory is planned for.
    octets = masks.contiguous().view(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=masks.device)
    ruled_out = (octets[:, :, None] >> places & 1).flatten(1)[:, : logits.shape[1]] == 0
    logits.index_copy_(0, rows, logits[rows].masked_fill_(ruled_out, -torch.inf))


def log_probs(logits: Tensor, token_ids: Tensor, top_n: int, asked_ids: Tensor) -> LogProbs:
    """Compute log-probabilities of given tokens, the likeliest ones, and others that are asked for.

    They are those of the model's own distribution, before temperature, penalties and filters, as
    OpenAI's are.

    logits:    [R, V] float, raw
    token_ids: [R] int64
    top_n:     how many of the likeliest; may be 0; of a small vocabulary, all
    asked_ids: [R, m] int64; m may be 0
    """
    wide = logits.float()
    normaliser = wide.logsumexp(dim=-1, keepdim=True)
    chosen = wide.gather(1, token_ids[:, None]) - normaliser
    top_values, top_ids = wide.topk(min(top_n, wide.shape[1]), dim=-1)
    asked = wide.gather(1, asked_ids) - normaliser
    return LogProbs(chosen[:, 0], top_values - normaliser, top_ids, asked)
