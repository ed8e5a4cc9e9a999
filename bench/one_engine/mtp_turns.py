"""Turns of answers with drafts of the MTP layer, beside plain decoding, and where they pay."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import click
import torch
from torch import Tensor

from baton.core.drafts import DraftSource
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.events import TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.mtp import MtpProposer
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import DecodingStep, Proposers

_PROMPT = 64  # tokens
_PHRASE = 8  # tokens of what a prompt repeats: a trained layer goes on with it


class Answered(NamedTuple):
    """The answers to requests that came at once. first: seconds to the last first token; rest:
    seconds from there on; lengths: of rows with drafts, how many gave 1, 2, … tokens."""

    tokens: Mapping[str, Sequence[int]]
    first: float
    rest: float
    lengths: tuple[int, ...]


class Compared(NamedTuple):
    """Seconds of an engine over those of plain decoding, as in `Answered`. seconds: its rest, a
    turn."""

    first: float
    rest: float
    seconds: float


@dataclass
class _Drafts:
    """The drafts of the MTP layer; or known ones, at the cost of that layer's, each of which is
    right with a probability.

    layer: None until the engine stands; a step before that has no drafts. right: None: the layer's
    own. answers: by prompt
    """

    rng: random.Random
    vocab: int
    layer: MtpProposer | None = None
    right: float | None = None
    answers: Mapping[tuple[int, ...], Sequence[int]] | None = None

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`. It reads prompts where only a CPU's device may."""
        if self.layer is None:
            return torch.zeros((len(rows), most), dtype=torch.int64), torch.zeros_like(rows)
        drafts, counts = self.layer.propose(tables, rows, ends, most, step)
        if self.right is None or self.answers is None:
            return drafts, counts
        for place, (row, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True)):
            answer = self.answers.get(tuple(tables.tokens[row, :_PROMPT].tolist()), ())
            for depth, token in enumerate(answer[end - _PROMPT :][:most]):
                wrong = self.rng.random() >= self.right
                drafts[place, depth] = (token + wrong) % self.vocab
        return drafts, counts


class MtpTurns:
    """Engines of one checkpoint: plain, with the layer's entries alone, with its drafts, and one
    that chooses."""

    def __init__(self, config: EngineConfig, window: int, rng: random.Random) -> None:
        """config: of plain decoding. window: tokens that a step verifies of a request.
        Raises ConfigError where the checkpoint has no such layer."""
        self._rng = rng
        self._plain = Engine(config, load_model(config), None)
        layered = replace(config, mtp=True)
        model = load_model(layered)
        self._writing = Engine(layered, load_model(layered), None)
        drafting = replace(
            layered,
            speculative_algorithm=SpeculativeAlgorithm.MTP,
            speculative_num_draft_tokens=window,
        )
        self._drafts = _Drafts(rng, model.config.vocab_size)
        sources = Proposers(NgramProposer(), self._drafts, (), DraftSource.MTP)
        self._drafting = Engine(drafting, model, None, proposers=sources)
        self._drafts.layer = MtpProposer(model, self._drafting.states, self._drafting.pages)
        choosing = replace(drafting, speculative_algorithm=SpeculativeAlgorithm.AUTO)
        self._choosing = Engine(choosing, load_model(choosing), None)
        self._window = window

    def run(
        self, turns: int, sizes: Sequence[int], tokens: int, shares: Sequence[float]
    ) -> dict[str, list[float]]:
        """Return the values of all turns by key; `baton bench speculate` says what they are. Raises
        ClickException where answers differ.

        sizes: requests at once. tokens: of an answer. shares: of drafts that are right, of the
        curve beside the layer's own
        """
        found: dict[str, list[float]] = {}
        for turn in range(-1, turns):  # the first touches memory and records steps
            for size in sizes:
                for key, value in self._turn(size, tokens, shares).items():
                    if turn >= 0:
                        found.setdefault(key, []).append(value)
        return found

    def _turn(self, size: int, tokens: int, shares: Sequence[float]) -> dict[str, float]:
        specs = self._requests(size, tokens)
        rows = size * (tokens - 1)
        plain = answered(self._plain, specs)
        self._drafts.answers = {spec.prompt_ids: plain.tokens[spec.request_id] for spec in specs}
        found = {f"tok_s_{size}_plain": rows / plain.rest}
        for name, right in [("mtp", None), *((f"mtp_{share:g}", share) for share in shares)]:
            self._drafts.right = right
            drafted = answered(self._drafting, specs)
            if drafted.tokens != plain.tokens:
                raise click.ClickException(f"answers differ at {name}, {size} requests")
            found[f"gain_{size}_{name}"] = plain.rest / drafted.rest
            found[f"tok_s_{size}_{name}"] = rows / drafted.rest
            if right is None:
                found |= self._acceptance(size, drafted.lengths)
        writing = _compared(self._plain, self._writing, specs)
        choosing = _compared(self._plain, self._choosing, specs)
        found[f"entries_ttft_{size}"], found[f"entries_decode_{size}"] = writing.first, writing.rest
        found[f"gain_{size}_auto_mtp"] = 1 / choosing.rest
        found[f"tok_s_{size}_auto_mtp"] = rows / choosing.seconds
        return found

    def _acceptance(self, size: int, lengths: Sequence[int]) -> dict[str, float]:
        """Return the share of rows with drafts whose drafts of each depth were right."""
        rows = max(1, sum(lengths))
        depths = range(1, self._window)
        return {f"acceptance_mtp_{d}_b{size}": sum(lengths[d:]) / rows for d in depths}

    def _requests(self, size: int, tokens: int) -> list[RequestSpec]:
        vocab = self._plain.plan.model_config.vocab_size
        greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        specs = []
        for row in range(size):
            phrase = [self._rng.randrange(vocab) for _ in range(_PHRASE)]
            prompt = tuple(phrase[place % _PHRASE] for place in range(_PROMPT))
            specs.append(RequestSpec(f"mtp-{row}", prompt, greedy))
        return specs


def answered(engine: Engine, specs: list[RequestSpec]) -> Answered:
    """Answer requests that come at once."""
    tokens: dict[str, list[int]] = {spec.request_id: [] for spec in specs}
    before = engine.counters.accepted_length_tokens
    for spec in specs:
        engine.submit(spec)
    began, first = time.perf_counter(), 0.0
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, TokenSampled):
                tokens[event.request_id].append(event.token_id)
        if not first and all(tokens.values()):
            first = time.perf_counter() - began
    whole = time.perf_counter() - began
    after = engine.counters.accepted_length_tokens
    lengths = tuple(now - then for now, then in zip(after, before, strict=True))
    return Answered(tokens, first, whole - first, lengths)


def _compared(plain: Engine, other: Engine, specs: list[RequestSpec]) -> Compared:
    """Compare the seconds of another engine with those of plain decoding, in the turns plain,
    other, other, plain. Raises ClickException where answers differ."""
    turns = [answered(engine, specs) for engine in (plain, other, other, plain)]
    if any(turn.tokens != turns[0].tokens for turn in turns):
        raise click.ClickException(f"answers differ, {len(specs)} requests")
    first, rest = ([getattr(turn, part) for turn in turns] for part in ("first", "rest"))
    return Compared(
        (first[1] + first[2]) / (first[0] + first[3]),
        (rest[1] + rest[2]) / (rest[0] + rest[3]),
        (rest[1] + rest[2]) / 2,
    )
