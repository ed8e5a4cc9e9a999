"""The device tensors that sampling and scoring need beside the logits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from torch import Tensor

from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.schedule.batch import Batch, Draw, Row

SIGN = 1 << 63
Special = tuple[int, Row, Draw]
"""An index among the draws, its row and its draw: see `Batch.special_draws`."""


@dataclass(frozen=True)
class RandomRows:
    """The n draws that are not greedy. rows [n] int64 into draws; seeds, positions [n] int64;
    temperature [n] float32; filters: top_k [n] int64, top_p [n], min_p [n] float32, or None."""

    rows: Tensor
    seeds: Tensor
    positions: Tensor
    temperature: Tensor
    filters: tuple[Tensor, Tensor, Tensor] | None


@dataclass(frozen=True)
class PenalisedRows:
    """The n draws with penalties. rows [n] int64 into draws; table_rows [n] int64, where the
    request tables have their counts; repetition, presence, frequency [n] float32."""

    rows: Tensor
    table_rows: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True)
class SamplingBatch:
    """The tensors of sampling, from the step's one packed copy. All int64 but the float32 fields of
    its parts.

    Logits come as `draws` rows to sample from, then one row a scored prompt token.
    """

    draws: int
    random: RandomRows | None
    penalised: PenalisedRows | None
    # What is added to single logits: rows [n] into draws, token ids [n], float32 [n].
    biases: tuple[Tensor, Tensor, Tensor] | None
    short: tuple[Tensor, Tensor] | None  # rows [n] into draws below their minimum length, and
    # the rows [n] of the request tables that have their stop tokens
    allowed: tuple[Tensor, Tensor] | None  # rows [n] into draws and their masks [n, words]
    logprob_rows: Tensor | None  # [n] into draws
    logprob_top: int  # the most alternatives that any of them wants
    logprob_asked: Tensor  # [n, m], other tokens they ask about, padded with token 0
    score_targets: Tensor | None  # [S], the token that each scoring row of logits is asked about
    score_top: int
    score_asked: Tensor  # [S, m], as logprob_asked


def pack_sampling(batch: Batch, pack: HostPack) -> None:
    """Put the fields of the step's SamplingBatch into `pack`."""
    special = batch.special_draws
    _pack_random([each for each in special if not each[2].sampling.greedy], pack)
    _pack_penalised([each for each in special if each[2].sampling.penalised], pack)
    _pack_biases(special, pack)
    short = [(i, row.table_row) for i, row, draw in special if draw.short]
    pack.ints("short_draws", [i for i, _ in short])
    pack.ints("short_rows", [row for _, row in short])
    masked = [(i, draw.allowed) for i, _, draw in special if draw.allowed is not None]
    pack.ints("allowed_rows", [i for i, _ in masked])
    pack.ints("allowed", chain.from_iterable(mask for _, mask in masked))
    wanted = [(i, draw.sampling) for i, _, draw in special if draw.sampling.logprobs is not None]
    pack.ints("logprob_rows", [i for i, _ in wanted])
    _pack_asked("logprob_asked", [(s.logprob_token_ids, 1) for _, s in wanted], pack)
    targets = [scores.targets[-scores.logits :] for _, scores in batch.scores if scores.logits]
    pack.ints("score_targets", [token for run in targets for token in run])
    asked = [(scores.asked, scores.logits) for _, scores in batch.scores if scores.logits]
    _pack_asked("score_asked", asked, pack)


def bind_sampling(batch: Batch, packed: DevicePack) -> SamplingBatch:
    """Return the SamplingBatch over the packed copy. Parts that the step does not need are None."""
    draws = [draw for _, _, draw in batch.special_draws]
    asking = [draw.sampling for draw in draws if draw.sampling.logprobs is not None]
    logprobs = [sampling.logprobs for sampling in asking if sampling.logprobs is not None]
    asked = max((len(sampling.logprob_token_ids) for sampling in asking), default=0)
    scored = [scores.top for _, scores in batch.scores if scores.logits]
    score_asked = max((len(s.asked) for _, s in batch.scores if s.logits), default=0)
    score_targets = packed.ints("score_targets")
    short = any(draw.short for draw in draws)
    return SamplingBatch(
        draws=len(batch.draws),
        random=_bind_random(draws, packed),
        penalised=_bind_penalised(draws, packed),
        biases=_bind_biases(draws, packed),
        short=(packed.ints("short_draws"), packed.ints("short_rows")) if short else None,
        allowed=_bind_allowed(draws, packed),
        logprob_rows=packed.ints("logprob_rows") if logprobs else None,
        logprob_top=max(logprobs, default=0),
        logprob_asked=packed.ints("logprob_asked").view(len(logprobs), asked),
        score_targets=score_targets if scored else None,
        score_top=max(scored, default=0),
        score_asked=packed.ints("score_asked").view(score_targets.shape[0], score_asked),
    )


def _pack_asked(name: str, asked: list[tuple[tuple[int, ...], int]], pack: HostPack) -> None:
    """Add the token ids that rows ask about, padded to one width.

    asked: (token ids, rows of logits that they are asked of)
    """
    width = max((len(ids) for ids, _ in asked), default=0)
    padded = ((*ids, *repeat(0, width - len(ids))) for ids, rows in asked for _ in range(rows))
    pack.ints(name, chain.from_iterable(padded))


def _pack_biases(special: Sequence[Special], pack: HostPack) -> None:
    biases = [(i, *pair) for i, _, draw in special for pair in draw.sampling.logit_bias]
    if not biases:
        return
    pack.ints("biased_rows", [row for row, _, _ in biases])
    pack.ints("biased_tokens", [token for _, token, _ in biases])
    pack.floats("biases", [bias for _, _, bias in biases])


def _bind_biases(draws: list[Draw], packed: DevicePack) -> tuple[Tensor, Tensor, Tensor] | None:
    if not any(draw.sampling.logit_bias for draw in draws):
        return None
    return packed.ints("biased_rows"), packed.ints("biased_tokens"), packed.floats("biases")


def _bind_allowed(draws: list[Draw], packed: DevicePack) -> tuple[Tensor, Tensor] | None:
    masks = [draw.allowed for draw in draws if draw.allowed is not None]
    if not masks:
        return None
    return packed.ints("allowed_rows"), packed.ints("allowed").view(len(masks), -1)


def _pack_random(rows: list[Special], pack: HostPack) -> None:
    pack.ints("random_rows", [i for i, _, _ in rows])
    seeds = (draw.sampling.seed or 0 for _, _, draw in rows)
    pack.ints("seeds", [seed - 2 * SIGN if seed >= SIGN else seed for seed in seeds])
    pack.ints("draw_positions", [row.position for _, row, _ in rows])
    pack.floats("temperature", [draw.sampling.temperature for _, _, draw in rows])
    pack.ints("top_k", [draw.sampling.top_k for _, _, draw in rows])
    pack.floats("top_p", [draw.sampling.top_p for _, _, draw in rows])
    pack.floats("min_p", [draw.sampling.min_p for _, _, draw in rows])


def _bind_random(draws: list[Draw], packed: DevicePack) -> RandomRows | None:
    random = [draw.sampling for draw in draws if not draw.sampling.greedy]
    if not random:
        return None
    filtered = any(s.top_k or s.top_p < 1.0 or s.min_p for s in random)
    filters = packed.ints("top_k"), packed.floats("top_p"), packed.floats("min_p")
    return RandomRows(
        rows=packed.ints("random_rows"),
        seeds=packed.ints("seeds"),
        positions=packed.ints("draw_positions"),
        temperature=packed.floats("temperature"),
        filters=filters if filtered else None,
    )


def _pack_penalised(rows: list[Special], pack: HostPack) -> None:
    pack.ints("penalised_rows", [i for i, _, _ in rows])
    pack.ints("penalised_table_rows", [row.table_row for _, row, _ in rows])
    each = [draw.sampling for _, _, draw in rows]
    pack.floats("repetition", [sampling.repetition_penalty for sampling in each])
    pack.floats("presence", [sampling.presence_penalty for sampling in each])
    pack.floats("frequency", [sampling.frequency_penalty for sampling in each])


def _bind_penalised(draws: list[Draw], packed: DevicePack) -> PenalisedRows | None:
    if not any(draw.sampling.penalised for draw in draws):
        return None
    return PenalisedRows(
        rows=packed.ints("penalised_rows"),
        table_rows=packed.ints("penalised_table_rows"),
        repetition=packed.floats("repetition"),
        presence=packed.floats("presence"),
        frequency=packed.floats("frequency"),
    )
