"""Tests of the sampler's inputs: penalties, bans, seeds and positions, all computed from the ids
alone."""

import random
from array import array
from dataclasses import replace
from typing import cast

import pytest
import torch
from engine.engines import greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB, HashModel, expected_tokens, model_logits
from engine.test_equivalence import alone, random_specs
from guards import NoHostReads
from torch import Tensor

from baton.core.sampling_params import SamplingParams
from baton.engine.forward.runner import ModelRunner
from baton.engine.layout.token_key import token_key
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.request_tables import RequestTables
from baton.engine.memory.state_pool import StatePool
from baton.engine.memory.table_changes import History, TableEntries
from baton.engine.request.draw import Draw
from baton.engine.request.request import Request, RequestSpec
from baton.engine.request.stop_checker import StopChecker
from baton.engine.step.batch import Batch, Row, Scores
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.model import Model
from baton.engine.step.recurrent_index import NO_INDEX, RecurrentIndex
from baton.engine.stream.forward_stream import InlineStream
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.torch_kernels import TORCH


def naive(model: HashModel, prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    """Greedy decoding under penalties, biases and a minimum length, one plain loop."""
    output: list[int] = []
    biases = dict(sampling.logit_bias)
    for index in range(sampling.max_tokens):
        logits = model_logits(model, [*prompt, *output])
        for token in range(VOCAB):
            if token in prompt or token in output:
                up = logits[token] > 0
                factor = sampling.repetition_penalty
                logits[token] = logits[token] / factor if up else logits[token] * factor
            logits[token] -= sampling.frequency_penalty * output.count(token)
            logits[token] -= sampling.presence_penalty * (token in output)
            logits[token] += biases.get(token, 0.0)
            if sampling.allowed_token_ids and token not in sampling.allowed_token_ids:
                logits[token] = -torch.inf
            if index < sampling.min_tokens and token in sampling.stop_token_ids:
                logits[token] = -torch.inf
        output.append(int(logits.argmax()))
        if index >= sampling.min_tokens and output[-1] in sampling.stop_token_ids:
            break
    return output


def test_penalties_and_bans_are_those_of_a_plain_loop(seeded: random.Random) -> None:
    model = HashModel()
    engine = make_engine(model, max_running=6)
    specs = []
    for number in range(8):
        sampling = greedy(
            25,
            repetition_penalty=seeded.choice([1.0, 1.5, 0.8]),
            presence_penalty=seeded.choice([0.0, 1.0, -1.0]),
            frequency_penalty=seeded.choice([0.0, 0.9, -0.4]),
            logit_bias={seeded.randrange(VOCAB): seeded.choice([-100.0, -1.0, 2.5, 100.0])},
            allowed_token_ids=seeded.choice([(), tuple(seeded.sample(range(VOCAB), 40))]),
            stop_token_ids=tuple(seeded.sample(range(VOCAB), 10)),
            min_tokens=seeded.choice([0, 12]),
        )
        specs.append(RequestSpec(str(number), random_prompt(seeded), sampling))
        engine.submit(specs[-1])
    events = run(engine)
    for spec in specs:
        expected = naive(model, spec.prompt_ids, spec.sampling)
        assert tokens_of(events, spec.request_id) == expected


def test_a_temperature_of_all_but_zero_is_greedy() -> None:
    """Logits divided by such a temperature exceed the largest float, and the first of those would
    win instead of the best."""
    engine = make_engine()
    hottest = [SamplingParams(temperature=t, max_tokens=9, ignore_eos=True) for t in (1e-40, 9e-6)]
    for output in engine.generate([(1, 2, 3)] * 2, hottest):
        assert list(output.token_ids) == expected_tokens(HashModel(), (1, 2, 3), 9)


def test_a_requests_tokens_are_sent_once(seeded: random.Random) -> None:
    """They come with its first step; what is sampled is never sent."""
    engine = make_engine(max_running=3)
    penalties = {"presence_penalty": 1.0, "repetition_penalty": 1.1}
    specs = [RequestSpec(str(n), random_prompt(seeded), greedy(9, **penalties)) for n in range(5)]
    for spec in specs:
        engine.submit(spec)
    found: list[bytes] = []
    while engine.has_work:
        engine.plan_step()
        if engine._steps.planned is not None:
            found += [history.tokens for _, history in engine._steps.planned.entries.histories]
        engine.run_step()
    assert sorted(found) == sorted(token_key(spec.prompt_ids) for spec in specs)


def test_a_prompt_counts_for_repetition_alone() -> None:
    def history(**penalties: float) -> History:
        spec = RequestSpec("a", (5, 6, 7), greedy(3, **penalties))
        stopper = StopChecker(spec.sampling, 9, frozenset(), None)
        return Request(spec, 1, stopper).history

    assert (history().counted, history().prompt_counted) == (False, False)
    assert history(presence_penalty=1.0)[2:4] == (True, False)
    assert history(repetition_penalty=1.1)[2:4] == (True, True)


def test_another_requests_history_is_noticed(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin one request in another's row, and append one row's token to another."""
    specs = random_specs(seeded, 6)
    expected = alone(specs)
    begin, append = RequestTables.begin, RequestTables.append

    def begin_beside(self: RequestTables, row: int, tokens: Tensor) -> None:
        begin(self, row % (self.ids.size - 1) + 1, tokens)

    def append_beside(self: RequestTables, rows: Tensor, ends: Tensor, ids: Tensor) -> None:
        append(self, rows.roll(1), ends, ids)

    for name, fault in (("begin", begin_beside), ("append", append_beside)):
        with monkeypatch.context() as patch:
            patch.setattr(RequestTables, name, fault)
            engine = make_engine()
            for spec in specs:
                engine.submit(spec)
            events = run(engine)
        found = {spec.request_id: tokens_of(events, spec.request_id) for spec in specs}
        assert found != expected, name


def test_a_request_goes_on_from_any_of_its_own_tokens(seeded: random.Random) -> None:
    """A retry or migration: nothing but the ids travels, and the draws are the same."""
    specs = random_specs(seeded, 10)
    for spec, tokens in zip(specs, alone(specs).values(), strict=True):
        given = seeded.randrange(len(tokens))
        engine = make_engine()
        engine.submit(replace(spec, output_ids=tuple(tokens[:given])))
        assert tokens_of(run(engine), spec.request_id) == tokens[given:]


def test_the_seed_decides_and_nothing_else(seeded: random.Random) -> None:
    prompt = random_prompt(seeded)
    seeds = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    engine = make_engine(HashModel(peak=1.0), max_running=3)
    for turn in range(2):
        for seed in seeds:
            sampling = SamplingParams(max_tokens=20, ignore_eos=True, seed=seed)
            engine.submit(RequestSpec(f"{turn}-{seed}", prompt, sampling))
    events = run(engine)
    drawn = [tokens_of(events, f"0-{seed}") for seed in seeds]
    assert drawn == [tokens_of(events, f"1-{seed}") for seed in seeds]
    assert len({tuple(tokens) for tokens in drawn}) == len(seeds)


class Wave:
    """A model that reads nothing on the host: [L, vocab] float32 from token and position."""

    config = HashModel().config
    weight_bytes = 0
    kernels = TORCH
    needs_cpu_seq_lens = False

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        return NO_INDEX

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        phase = (batch.token_ids + batch.positions)[batch.logit_tokens].float()
        return torch.sin(phase[:, None] * torch.arange(1, VOCAB + 1))


@pytest.mark.parametrize("plain", [True, False])
def test_a_launch_reads_nothing_back(plain: bool) -> None:
    full = SamplingParams(
        temperature=0.7, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2, seed=7, logprobs=3
    )
    sampling = SamplingParams(temperature=0.0) if plain else full
    allowed = None if plain else array("q", [-1, 1 << 20])
    draw = Draw(sampling, not plain, allowed)
    rows = (
        Row(1, 1, 9, 10, 1, 1, 1, True, draw, None),
        Row(
            2,
            1,
            0,
            12,
            0,
            2,
            2,
            True,
            draw,
            Scores(0, tuple(range(12)), 2, (5, 0)),
        ),
        Row(3, 1, 8, 10, 3, 3, 3, False, None, None),
    )
    engine = make_engine()
    pools = engine.states, engine.pages, engine._pools.tables
    runner = ModelRunner(cast(Model, Wave()), *pools, InlineStream(), 1)
    width = engine._pools.tables.pages.shape[1]
    places = array("q", [row * width + entry for row in (1, 2, 3) for entry in (0, 1)])
    history = History(token_key(range(12)), 10, not plain, not plain, () if plain else (1, 5))
    entries = TableEntries(
        places, array("q", range(1, 7)), tuple((row.table_row, history) for row in rows)
    )
    batch = Batch(1, rows, 1, entries)
    with NoHostReads():
        launched = runner.launch(batch)
    result = runner.collect(launched)
    assert len(result.token_ids) == 2 and len(result.scores) == 1
    assert len(result.scores[0]) == 12 and result.scores[0][0].logprob is None
    assert (result.logprobs[0] is None) is plain
