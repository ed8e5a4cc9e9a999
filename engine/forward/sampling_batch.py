"""The device tensors that sampling and scoring need beside the logits."""

from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np
from torch import Tensor

from baton.engine.forward.host_pack import DevicePack, HostPack
from baton.engine.request.draw import FILTERS, PENALTIES, Draw, DrawRecords
from baton.engine.step.batch import Draws, Scores


@dataclass(frozen=True)
class RandomRows:
    """The n draws that are not greedy. rows [n] int64 into draws; table_rows [n] int64, where the
    request tables have their lengths; seeds [n] int64;
    temperature [n] float32; filters: the columns [n] of FILTERS, int64 or float32, or None."""

    rows: Tensor
    table_rows: Tensor
    seeds: Tensor
    temperature: Tensor
    filters: tuple[Tensor, ...] | None


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
    # Rows [n] into draws that may be below their minimum length, the rows [n] of the request tables
    # that have their stop tokens, and those lengths [n].
    short: tuple[Tensor, Tensor, Tensor] | None
    allowed: tuple[Tensor, Tensor] | None  # rows [n] into draws and their masks [n, words]
    logprob_rows: Tensor | None  # [n] into draws
    logprob_top: int  # the most alternatives that any of them wants
    logprob_asked: Tensor  # [n, m], other tokens they ask about, padded with token 0
    score_targets: Tensor | None  # [S], the token that each scoring row of logits is asked about
    score_top: int
    score_asked: Tensor  # [S, m], as logprob_asked


Asking = tuple[tuple[int, Draw], ...]
Scored = tuple[tuple[int, Scores], ...]


def pack_sampling(draws: Draws, asking: Asking, scored: Scored, pack: HostPack) -> None:
    """Put the fields of a SamplingBatch into `pack`.

    asking: the draws that want log probabilities. scored: the rows that score their prompts. See
    `Batch`, which has both with the draws of its step.
    """
    records = draws.records
    if records["special"].any():
        _pack_random(draws, pack)
        _pack_penalised(draws, pack)
        _pack_biases(draws, pack)
        short = np.flatnonzero(records["short"])
        pack.ints("short_draws", short)
        pack.ints("short_rows", draws.table_rows[short])
        pack.ints("short_least", [draws.each[i].sampling.min_tokens for i in short.tolist()])
        pack.ints("allowed_rows", np.flatnonzero(records["masked"]))
        masks = (draw.allowed for draw in draws.each)
        pack.masks("allowed", (mask for mask in masks if mask is not None))
    pack.ints("logprob_rows", [i for i, _ in asking])
    wanted = [draw.sampling.logprob_token_ids for _, draw in asking]
    _pack_asked("logprob_asked", [(asked, 1) for asked in wanted], pack)
    targets = [scores.targets[-scores.logits :] for _, scores in scored if scores.logits]
    pack.ints("score_targets", [token for run in targets for token in run])
    asked = [(scores.asked, scores.logits) for _, scores in scored if scores.logits]
    _pack_asked("score_asked", asked, pack)


def bind_sampling(
    draws: Draws, asking: Asking, scored: Scored, packed: DevicePack
) -> SamplingBatch:
    """Return the SamplingBatch over the packed copy. Parts that the step does not need are None."""
    records = draws.records
    askers = [draw.sampling for _, draw in asking]
    asked = max((len(sampling.logprob_token_ids) for sampling in askers), default=0)
    tops = [scores.top for _, scores in scored if scores.logits]
    score_asked = max((len(s.asked) for _, s in scored if s.logits), default=0)
    score_targets = packed.ints("score_targets")
    return SamplingBatch(
        draws=len(draws.each),
        random=_bind_random(records, packed) if records["random"].any() else None,
        penalised=_bind_penalised(packed) if records["penalised"].any() else None,
        biases=_bind_biases(packed) if records["biased"].any() else None,
        short=_bind_short(packed) if records["short"].any() else None,
        allowed=_bind_allowed(packed) if records["masked"].any() else None,
        logprob_rows=packed.ints("logprob_rows") if askers else None,
        logprob_top=max((sampling.logprobs or 0 for sampling in askers), default=0),
        logprob_asked=packed.ints("logprob_asked").view(len(askers), asked),
        score_targets=score_targets if tops else None,
        score_top=max(tops, default=0),
        score_asked=packed.ints("score_asked").view(score_targets.shape[0], score_asked),
    )


def _pack_asked(name: str, asked: list[tuple[tuple[int, ...], int]], pack: HostPack) -> None:
    """Add the token ids that rows ask about, padded to one width.

    asked: (token ids, rows of logits that they are asked of)
    """
    width = max((len(ids) for ids, _ in asked), default=0)
    padded = ((*ids, *repeat(0, width - len(ids))) for ids, rows in asked for _ in range(rows))
    pack.ints(name, chain.from_iterable(padded))


def _pack_biases(draws: Draws, pack: HostPack) -> None:
    rows = np.flatnonzero(draws.records["biased"]).tolist()
    biases = [(i, *pair) for i in rows for pair in draws.each[i].sampling.logit_bias]
    pack.ints("biased_rows", [row for row, _, _ in biases])
    pack.ints("biased_tokens", [token for _, token, _ in biases])
    pack.floats("biases", [bias for _, _, bias in biases])


def _bind_biases(packed: DevicePack) -> tuple[Tensor, Tensor, Tensor]:
    return packed.ints("biased_rows"), packed.ints("biased_tokens"), packed.floats("biases")


def _bind_short(packed: DevicePack) -> tuple[Tensor, Tensor, Tensor]:
    return packed.ints("short_draws"), packed.ints("short_rows"), packed.ints("short_least")


def _bind_allowed(packed: DevicePack) -> tuple[Tensor, Tensor]:
    rows = packed.ints("allowed_rows")
    return rows, packed.ints("allowed").view(rows.shape[0], -1)


def _pack_random(draws: Draws, pack: HostPack) -> None:
    rows = np.flatnonzero(draws.records["random"])
    records = draws.records[rows]
    pack.ints("random_rows", rows)
    pack.ints("seeds", records["seed"])
    pack.ints("random_table_rows", draws.table_rows[rows])
    pack.floats("temperature", records["temperature"])
    for name, kind in FILTERS.items():
        (pack.ints if kind is np.int64 else pack.floats)(name, records[name])


def _bind_random(records: DrawRecords, packed: DevicePack) -> RandomRows:
    filters = (
        packed.ints(name) if kind is np.int64 else packed.floats(name)
        for name, kind in FILTERS.items()
    )
    return RandomRows(
        rows=packed.ints("random_rows"),
        table_rows=packed.ints("random_table_rows"),
        seeds=packed.ints("seeds"),
        temperature=packed.floats("temperature"),
        filters=tuple(filters) if (records["random"] & records["filtered"]).any() else None,
    )


def _pack_penalised(draws: Draws, pack: HostPack) -> None:
    rows = np.flatnonzero(draws.records["penalised"])
    records = draws.records[rows]
    pack.ints("penalised_rows", rows)
    pack.ints("penalised_table_rows", draws.table_rows[rows])
    for name in PENALTIES:
        pack.floats(name, records[name])


def _bind_penalised(packed: DevicePack) -> PenalisedRows:
    return PenalisedRows(
        rows=packed.ints("penalised_rows"),
        table_rows=packed.ints("penalised_table_rows"),
        repetition=packed.floats("repetition_penalty"),
        presence=packed.floats("presence_penalty"),
        frequency=packed.floats("frequency_penalty"),
    )
