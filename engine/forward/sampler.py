"""The sampling of tokens and log probabilities from logits, on the device."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.forward.sampling_batch import PenalisedRows, SamplingBatch
from baton.engine.memory.request_tables import RequestTables
from baton.kernels.base import Kernels
from baton.kernels.sampling import LogProbs, add_biases, allow_tokens, log_probs, mask_tokens
from baton.kernels.torch_kernels import TORCH

_TAKEN = -1e20
"""The logit of a token that was drawn already: below all others but those that a rule forbids."""


@dataclass(frozen=True)
class Sampled:
    """The results of a step on the device. token_ids [draws] int64; logprobs of the draws that want
    them; scores of the scored prompt tokens.
    """

    token_ids: Tensor
    logprobs: LogProbs | None
    scores: LogProbs | None

    def to_host(self) -> "Sampled":
        """Start copying to pinned memory; wait for the stream's event before reading. On a CPU,
        return self.
        """
        if not self.token_ids.is_cuda:
            return self
        return Sampled(
            pinned(self.token_ids),
            None if self.logprobs is None else LogProbs(*map(pinned, self.logprobs)),
            None if self.scores is None else LogProbs(*map(pinned, self.scores)),
        )


def pinned(tensor: Tensor) -> Tensor:
    """Start copying `tensor` to pinned memory."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def sample(
    logits: Tensor,
    batch: SamplingBatch,
    ends: Tensor,
    tables: RequestTables,
    kernels: Kernels = TORCH,
    forced: Tensor | None = None,
) -> Sampled:
    """Sample the draws of a step and score its prompt tokens.

    logits: [draws + scored tokens, vocab] float32, raw; its first rows are changed in place.
    ends: [draws] int64, tokens of each sequence before the one that is sampled.
    tables: have the counts of the draws with penalties, which learn what is sampled.
    forced: [draws or fewer] int64, tokens that the first draws are to give; -1: what is drawn.
    """
    draws = logits[: batch.draws]
    scores = None
    if batch.score_targets is not None:
        scores = log_probs(
            logits[batch.draws :], batch.score_targets, batch.score_top, batch.score_asked
        )
    # Logprobs are of the raw distribution, so their rows are put aside before penalties.
    raw = draws[batch.logprob_rows] if batch.logprob_rows is not None else None
    token_ids = drawn(draws, batch, ends, tables, kernels)
    if forced is not None:
        first = token_ids[: len(forced)]
        first.copy_(torch.where(forced >= 0, forced, first))
    if batch.penalised is not None:
        known = batch.penalised
        kernels.add_token_counts(tables.counts, known.table_rows, token_ids[known.rows])
    logprobs = None
    if raw is not None and batch.logprob_rows is not None:
        chosen = token_ids[batch.logprob_rows]
        logprobs = log_probs(raw, chosen, batch.logprob_top, batch.logprob_asked)
    return Sampled(token_ids, logprobs, scores)


def drawn(
    logits: Tensor, batch: SamplingBatch, ends: Tensor, tables: RequestTables, kernels: Kernels
) -> Tensor:
    """Draw a token of each row, and count none: [draws] int64.

    logits: [draws, vocab] float32, raw; changed in place. The others: as of `sample`.
    """
    _apply_rules(logits, batch, ends, tables, kernels)
    return _picked(logits, batch, ends, tables, kernels)


def ranked(
    logits: Tensor,
    batch: SamplingBatch,
    ends: Tensor,
    tables: RequestTables,
    kernels: Kernels,
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return the tokens that each row draws first, second and so on, each without those before it:
    [draws, most] int64, and falling log probabilities, [draws, most] float32: -inf where a rule
    forbids the token, or no other is left.

    The parameters are those of `drawn`; most: up to the vocabulary's size.
    """
    _apply_rules(logits, batch, ends, tables, kernels)
    whole = logits.logsumexp(dim=-1, keepdim=True)
    if batch.random is None:
        values, token_ids = logits.topk(most, dim=-1)
        return token_ids, values - whole
    tokens, scores = [], []
    for _ in range(most):
        token = _picked(logits, batch, ends, tables, kernels)[:, None]
        value = logits.gather(1, token)
        tokens.append(token)
        scores.append(torch.where(value > _TAKEN, value - whole, -torch.inf))
        logits.scatter_(1, token, _TAKEN)
    # Noise may put a less likely token first: which of them is right follows the order of draws.
    return torch.cat(tokens, dim=1), torch.cat(scores, dim=1).sort(dim=1, descending=True).values


def _apply_rules(
    logits: Tensor, batch: SamplingBatch, ends: Tensor, tables: RequestTables, kernels: Kernels
) -> None:
    """Change the logits by penalties, biases and masks, in place."""
    if batch.penalised is not None:
        _penalise(logits, batch.penalised, tables, kernels)
    if batch.biases is not None:
        add_biases(logits, *batch.biases)
    if batch.short is not None:
        rows, table_rows, least = batch.short
        # Whether a row is that short is known here: where it verifies drafts, the host does not.
        short = tables.output_lengths(table_rows, ends.index_select(0, rows)) < least
        mask_tokens(logits, rows, tables.stop_ids[table_rows], short)
    if batch.allowed is not None:
        allow_tokens(logits, *batch.allowed)


def _picked(
    logits: Tensor, batch: SamplingBatch, ends: Tensor, tables: RequestTables, kernels: Kernels
) -> Tensor:
    """Return the token of each row that the filters and the noise give: [draws] int64."""
    random = batch.random
    if random is None:
        return logits.argmax(dim=-1)
    positions = tables.output_lengths(random.table_rows, ends.index_select(0, random.rows))
    return kernels.sample_tokens(
        logits, random.rows, random.temperature, random.seeds, positions, random.filters
    )


def _penalise(
    logits: Tensor, penalised: PenalisedRows, tables: RequestTables, kernels: Kernels
) -> None:
    kernels.apply_penalties(
        logits,
        penalised.rows,
        tables.counts,
        penalised.table_rows,
        penalised.repetition,
        penalised.presence,
        penalised.frequency,
    )
