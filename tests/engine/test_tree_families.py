"""Every family with trees of drafts: on native kernels the same bits as plain decoding."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import tokens_of
from engine.proposers import Known, KnownOnDevice, KnownTree
from engine.test_oracle import load
from engine.test_speculation_families import (
    OPTIONS,
    OUTPUT,
    answered,
    sampled,
    snapshots,
    specs_of,
)
from oracle.reference import Oracle
from oracle.specs import DEEP, SPECS

from baton.core.errors import ConfigError
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.request.events import Event
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import Proposers
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.native.library import load as library


@pytest.fixture
def folder(oracle: Oracle, name: str) -> Path:
    return oracle.checkpoint(name)


def with_trees(
    folder: Path,
    options: dict[str, Any],
    specs: list[RequestSpec],
    plain: list[Event],
    rng: random.Random,
) -> tuple[Engine, KnownTree]:
    """An engine with trees of 2 or 4 continuations, one of which is the answer, and 5 to 16
    nodes."""
    sequences = [(*spec.prompt_ids, *tokens_of(plain, spec.request_id)) for spec in specs]
    right, topk = rng.choice([0.7, 0.9, 1.0]), rng.choice([2, 4])
    tokens, steps = rng.choice([5, 8, 16]), rng.choice([2, 4, 7])
    print(f"{right=} {topk=} {tokens=} {steps=}")
    engine = load(folder, **options)
    config = replace(
        engine.config,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=tokens,
        speculative_eagle_topk=topk,
        speculative_num_steps=steps,
    )
    known = Known(sequences, right, engine.plan.model_config.vocab_size, rng)
    tree = KnownTree(known, topk, config.draft_depth)
    proposers = Proposers(NgramProposer(), KnownOnDevice(known), tree=tree)
    return Engine(config, load_model(config), None, proposers=proposers), tree


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", SPECS)
def test_native_answers_and_snapshots_are_the_same_bits(
    folder: Path, seeded: random.Random, name: str, dtype: torch.dtype, greedy: bool
) -> None:
    if library() is None:
        pytest.skip("no C++ compiler")
    options = {**OPTIONS, "dtype": dtype, "ssm_dtype": dtype}
    try:
        before = load(folder, **options)
    except ConfigError as error:
        pytest.skip(f"not on these kernels: {error}")
    specs = specs_of(seeded, 90, greedy)
    plain = answered(before, specs)
    engine, tree = with_trees(folder, options, specs, plain, seeded)
    found = answered(engine, specs)
    for spec in specs:
        assert sampled(plain, spec.request_id) == sampled(found, spec.request_id)
        states = [snapshots(e, spec, plain) for e in (before, engine)]
        assert states[0].keys() == states[1].keys()
        for depth, state in states[0].items():
            assert torch.equal(state, states[1][depth]), f"state after {depth} tokens"
    assert engine.counters.draft_rows
    if greedy:
        assert tree.branched and engine.counters.draft_tokens_accepted


@pytest.mark.parametrize("name", DEEP)
def test_torch_s_answers_are_those_of_transformers(
    oracle: Oracle, folder: Path, seeded: random.Random, name: str
) -> None:
    options = {**OPTIONS, "kernels": KernelChoice.TORCH}
    before = load(folder, **options)
    specs = [
        replace(spec, sampling=replace(spec.sampling, logprobs=None))
        for spec in specs_of(seeded, SPECS[name].config["vocab_size"], greedy=True)
    ]
    plain = answered(before, specs)
    engine, tree = with_trees(folder, options, specs, plain, seeded)
    found = answered(engine, specs)
    got = [tokens_of(found, spec.request_id) for spec in specs]
    oracle.assert_all_greedy(folder, [spec.prompt_ids for spec in specs], got, OUTPUT)
    assert tree.branched
