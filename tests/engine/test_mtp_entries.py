"""Engines that run the layer of multi-token prediction: what they cache of it is what one forward
over the tokens leaves, however the tokens were computed."""

import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import run, tokens_of
from engine.test_oracle import load
from engine.test_prediction import edited
from mtp_models import MtpCheckpoints, entries_in
from step_driver import StepDriver

from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

BOUND = 1e-4
OPTIONS: dict[str, Any] = {
    "mtp": True,
    "chunked_prefill_size": 48,
    "mamba_track_interval": 16,
    "cached_snapshots": 40,
    "speculative_algorithm": SpeculativeAlgorithm.NGRAM,
    "speculative_num_draft_tokens": 4,
}


@pytest.fixture(params=["qwen3_next_odd", "nemotron_moe", "deepseek3_grouped"])
def folder(mtp_checkpoints: MtpCheckpoints, request: pytest.FixtureRequest) -> Path:
    return mtp_checkpoints.folder(request.param)


def specs_of(rng: random.Random, vocab: int, turn: int, heard: list[tuple[int, ...]]) -> list:
    """Requests of one turn; most go on from a text that was heard."""
    found = []
    for number in range(4):
        begun = rng.choice(heard) if heard and rng.random() < 0.8 else ()
        more = tuple(rng.randrange(3, vocab) for _ in range(rng.choice([3, 40, 130])))
        sampling = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        found.append(RequestSpec(f"t{turn}r{number}", (*begun, *more), sampling))
    return found


def assert_cached_as_one_forward_leaves_it(engine: Engine, driver: StepDriver) -> int:
    """Compare every cached page and snapshot; return how many snapshots there were."""
    tree, model, snapshots = engine._pools.cache.tree, driver.model, 0
    for node in tree:
        if not node.attached:
            continue
        tokens, pages = array("i", tree.path_key(node)[1]).tolist(), tree.path_pages(node)
        row = driver.start(tokens)
        driver.prefill(row)
        expected = entries_in(driver.pages, row.pages, node.depth)
        found = entries_in(engine.pages, pages, node.depth)
        torch.testing.assert_close(found, expected, rtol=0, atol=BOUND)
        if node.snapshot is not None:
            slots = torch.tensor([row.slot]), torch.tensor([node.snapshot])
            own = model.hidden_before(driver.states, slots[0])
            cached = model.hidden_before(engine.states, slots[1])
            torch.testing.assert_close(cached, own, rtol=0, atol=BOUND)
            snapshots += 1
        driver.states.ids.free(row.slot, Owner.LIVE)
        driver.pages.ids.free_many(row.pages, Owner.LIVE)
    return snapshots


@pytest.mark.parametrize("kernels", [KernelChoice.AUTO, KernelChoice.TORCH])
def test_caches_hold_what_one_forward_leaves(folder: Path, kernels: KernelChoice) -> None:
    rng = random.Random(5)
    plain = load(folder, kernels=kernels)
    engine = load(folder, kernels=kernels, **OPTIONS)
    vocab = engine.plan.model_config.vocab_size
    heard: list[tuple[int, ...]] = []
    for turn in range(4):
        specs = specs_of(rng, vocab, turn, heard)
        for spec in specs:
            plain.submit(spec)
        answers = run(plain)
        for spec in specs:
            right = tokens_of(answers, spec.request_id)
            engine.submit(replace(spec, prediction_ids=edited(right, rng)))
        run(engine)
        heard += [(*s.prompt_ids, *tokens_of(answers, s.request_id)) for s in specs]
    counters = engine.counters
    assert counters.state_hit_tokens
    assert 0 < sum(counters.drafts_accepted) < sum(counters.drafts_proposed)
    model = load_model(EngineConfig(model=folder, kernels=kernels, mtp=True))
    assert assert_cached_as_one_forward_leaves_it(engine, StepDriver(model)) > 8
