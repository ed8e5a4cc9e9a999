"""Tests of the sampler's inputs: penalties, bans, seeds and positions, all computed from the ids
alone."""

import random
from array import array
from dataclasses import replace

import pytest
import torch
from engine.engines import greedy, make_engine, random_prompt, run, tokens_of
from engine.hash_model import VOCAB, HashModel, expected_tokens, model_logits
from engine.test_equivalence import alone, random_specs
from guards import NoHostReads
from torch import Tensor

from baton.core.sampling_params import SamplingParams
from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.forward_stream import InlineStream
from baton.engine.forward.recurrent_index import NO_INDEX, RecurrentIndex
from baton.engine.forward.runner import ModelRunner
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.schedule.batch import Batch, Draw, Row, Scores
from baton.engine.schedule.request import RequestSpec
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.torch_kernels import TORCH


def naive(model: HashModel, prompt: tuple[int, ...], sampling: SamplingParams) -> list[int]:
    """Greedy decoding under penalties and a minimum length, one plain loop."""
    output: list[int] = []
    for index in range(sampling.max_tokens):
        logits = model_logits(model, [*prompt, *output])
        for token in range(VOCAB):
            if token in prompt or token in output:
                up = logits[token] > 0
                factor = sampling.repetition_penalty
                logits[token] = logits[token] / factor if up else logits[token] * factor
            logits[token] -= sampling.frequency_penalty * output.count(token)
            logits[token] -= sampling.presence_penalty * (token in output)
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


def test_a_prompt_is_looked_at_only_for_repetition_and_each_of_its_tokens_once() -> None:
    """Each of them is packed again in every step."""
    engine = make_engine()
    prompt = (5, 6, 7) * 40
    engine.submit(RequestSpec("none", prompt, greedy(3, presence_penalty=1.0)))
    engine.submit(RequestSpec("each", prompt, greedy(3, repetition_penalty=1.1)))
    found: dict[int, set[tuple[int, ...]]] = {}
    while engine.has_work:
        engine.plan_step()
        for batch in engine._steps.batches:
            for _, draw in batch.draws:
                found.setdefault(draw.sampling.presence_penalty != 0, set()).add(draw.prompt)
        engine.run_step()
    assert found[True] == {()}
    assert {tuple(sorted(ids)) for ids in found[False]} == {(5, 6, 7)}


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
    history = ((), ()) if plain else ((1, 2, 3), (4, 4))
    allowed = None if plain else array("q", [-1, 1 << 20])
    draw = Draw(2, sampling, () if plain else (1, 5), *history, False, allowed)
    rows = (
        Row(1, 1, 9, (4,), False, 1, 1, (1, 2), True, draw, None),
        Row(
            2,
            1,
            0,
            tuple(range(12)),
            False,
            0,
            2,
            (3, 4),
            True,
            draw,
            Scores(0, tuple(range(12)), 2, (5, 0)),
        ),
        Row(3, 1, 8, (1, 2), False, 3, 3, (5, 6), False, None, None),
    )
    engine = make_engine()
    runner = ModelRunner(Wave(), engine.states, engine.pages, InlineStream(), 1)
    batch = Batch(1, rows, decode_rows=1)
    with NoHostReads():
        launched = runner.launch(batch)
    result = runner.collect(launched)
    assert len(result.token_ids) == 2 and len(result.scores) == 1
    assert len(result.scores[0]) == 12 and result.scores[0][0].logprob is None
    assert (result.logprobs[0] is None) is plain
