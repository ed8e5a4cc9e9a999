"""Every family with drafts: on native kernels the same bits as plain decoding."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import run, tokens_of
from engine.proposers import Known, KnownOnDevice, KnownText, RandomChoice
from engine.test_equivalence import random_sampling
from engine.test_oracle import load
from engine.test_prediction import edited
from oracle.reference import Oracle
from oracle.specs import DEEP, SPECS

from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.layout.token_key import token_key
from baton.engine.request.events import Event, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation import drafter
from baton.engine.speculation.prediction import PredictionSource
from baton.engine.speculation.proposer import Proposers
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.native.library import load as library

OUTPUT = 40
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def case(place: int, name: str, dtype: str, kind: str) -> Any:
    """Every checkpoint is in both dtypes, and has both kinds of sampling, one in each dtype: logits
    do not know how tokens are drawn. `make chaos` runs the others too."""
    usual = (dtype == "fp32") == ((kind == "greedy") == (place % 2 == 0))
    return pytest.param(
        name, DTYPES[dtype], kind == "greedy", id=f"{name}-{dtype}-{kind}",
        marks=() if usual else pytest.mark.chaos,
    )  # fmt: skip


CASES = [
    case(place, name, dtype, kind)
    for place, name in enumerate(SPECS)
    for dtype, kind in product(DTYPES, ("greedy", "sampled"))
]
OPTIONS: dict[str, Any] = {
    "mamba_track_interval": 16,
    "cached_snapshots": 24,
    "chunked_prefill_size": 64,
}


@pytest.fixture
def folder(oracle: Oracle, name: str) -> Path:
    return oracle.checkpoint(name)


def sampled(events: list[Event], name: str) -> list[TokenSampled]:
    return [e for e in events if isinstance(e, TokenSampled) and e.request_id == name]


def specs_of(rng: random.Random, vocab: int, greedy: bool) -> list[RequestSpec]:
    """Requests that ask for log probabilities, which show every bit of the logits that decide."""
    found = []
    for number in range(5):
        length = rng.choice([1, 2, 16, 50]) if number else 50
        prompt = tuple(rng.randrange(3, vocab) for _ in range(length))
        sampling = SamplingParams(temperature=0.0)
        if not greedy:
            sampling = random_sampling(rng, OUTPUT)
            allowed = tuple(sampling.allowed_token_ids)
            sampling = replace(sampling, allowed_token_ids=allowed, temperature=1.0)
        sampling = replace(
            sampling, max_tokens=OUTPUT, logprobs=5, ignore_eos=True, stop_token_ids=()
        )
        found.append(RequestSpec(f"r{number}", prompt, sampling))
    return found


def answered(engine: Engine, specs: list[RequestSpec]) -> list[Event]:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


def drafting(
    folder: Path,
    options: dict,
    specs: list[RequestSpec],
    plain: list[Event],
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> Engine:
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    right = rng.choice([0.0, 0.6, 0.9, 1.0])
    tokens = rng.choice([2, 4, 8])
    side, paced = rng.choice(["host", "device", "texts"]), rng.random() < 0.5
    print(f"{right=} {tokens=} {side=} {paced=}")
    paces = random.Random(rng.random())
    monkeypatch.setattr(drafter, "DraftChoice", lambda most, cuts, _: RandomChoice(most, paces))
    engine = load(folder, **options)
    config = replace(
        engine.config,
        speculative_algorithm=SpeculativeAlgorithm.AUTO if paced else SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=tokens,
    )
    vocab = engine.plan.model_config.vocab_size
    proposer = Known(sequences, right, vocab, rng)
    guesser = None if side == "host" else KnownOnDevice(proposer)
    texts = (PredictionSource(), KnownText(proposer)) if side == "texts" else ()
    return Engine(config, load_model(config), None, proposers=Proposers(proposer, guesser, texts))


def predicting(
    specs: list[RequestSpec], plain: list[Event], rng: random.Random
) -> list[RequestSpec]:
    """The requests, some with predictions that are right in part."""
    answers = [edited(tokens_of(plain, spec.request_id), rng) for spec in specs]
    return [
        replace(spec, prediction_ids=answer) if rng.random() < 0.5 else spec
        for spec, answer in zip(specs, answers, strict=True)
    ]


def snapshots(engine: Engine, spec: RequestSpec, events: list[Event]) -> dict[int, torch.Tensor]:
    """The bytes of the cached states of a request's tokens, by depth."""
    tokens = (*spec.prompt_ids, *tokens_of(events, spec.request_id))
    found, limit = {}, len(tokens)
    while limit > 0:
        match = engine._pools.cache.match(token_key(tokens), limit, spec.cache_salt)
        if match.snapshot is None:
            break
        found[match.depth] = engine.states.storage[match.snapshot].clone()
        limit = match.depth - 1
    return found


@pytest.mark.parametrize(("name", "dtype", "greedy"), CASES)
def test_native_answers_and_snapshots_are_the_same_bits(
    folder: Path,
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: torch.dtype,
    greedy: bool,
) -> None:
    if library() is None:
        pytest.skip("no C++ compiler")
    options = {**OPTIONS, "dtype": dtype, "ssm_dtype": dtype}
    try:
        before = load(folder, **options)
    except ConfigError as error:
        pytest.skip(f"not on these kernels: {error}")
    specs = specs_of(seeded, 90, greedy)  # ids that a sampling's lists may name
    plain = answered(before, specs)
    engine = drafting(folder, options, specs, plain, seeded, monkeypatch)
    assert sum(layer.nbytes for layer in engine._runner._kept) == engine.plan.step.kept
    found = answered(engine, predicting(specs, plain, seeded))
    kept = 0
    for spec in specs:
        assert sampled(plain, spec.request_id) == sampled(found, spec.request_id)
        states = [snapshots(e, spec, plain) for e in (before, engine)]
        assert states[0].keys() == states[1].keys()
        kept += len(states[0])
        for depth, state in states[0].items():
            assert torch.equal(state, states[1][depth]), f"state after {depth} tokens"
    assert kept or not engine.plan.model_config.recurrent
    assert engine.counters.draft_rows


@pytest.mark.parametrize("name", DEEP)
def test_torch_s_answers_are_those_of_transformers(
    oracle: Oracle,
    folder: Path,
    seeded: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Tokens are the same in float32 up to near ties, which the oracle counts."""
    options = {**OPTIONS, "kernels": KernelChoice.TORCH}
    before = load(folder, **options)
    specs = [
        replace(spec, sampling=replace(spec.sampling, logprobs=None))
        for spec in specs_of(seeded, SPECS[name].config["vocab_size"], greedy=True)
    ]
    plain = answered(before, specs)
    engine = drafting(folder, options, specs, plain, seeded, monkeypatch)
    found = answered(engine, predicting(specs, plain, seeded))
    got = [tokens_of(found, spec.request_id) for spec in specs]
    oracle.assert_all_greedy(folder, [spec.prompt_ids for spec in specs], got, OUTPUT)
