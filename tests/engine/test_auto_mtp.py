"""`auto` with checkpoints that have a layer of multi-token prediction: where the layer is run, and
answers of rows that are guessed for by it, by n-grams, by turns, or not at all."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.engines import step_until
from engine.proposers import RandomChoice
from engine.test_mtp_drafts import (
    answered,
    assert_same,
    both_dtypes,
    options,
    poisoned,
    requests,
)
from engine.test_oracle import load
from mtp_models import MtpCheckpoints
from oracle.reference import Oracle
from safetensors.torch import load_file, save_file

from baton.core.drafts import DraftSource
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.models.family_table import configured_model
from baton.engine.request.request import Request
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation import drafter
from baton.kernels.native.library import load as library

NAMES = ["qwen3_next_moe", "qwen3_5_moe", "nemotron_moe", "deepseek3_grouped"]


def auto(config: EngineConfig, tokens: int = 4) -> EngineConfig:
    return replace(
        config,
        mtp=None,
        speculative_algorithm=SpeculativeAlgorithm.AUTO,
        speculative_num_draft_tokens=tokens,
    )


class RandomRows(RandomChoice):
    """Chooses at random also whether the layer guesses for a row."""

    def by_layer(self, request: Request) -> bool:
        return self._rng.random() < 0.5


def by_source(engine: Engine) -> dict[DraftSource, tuple[int, int]]:
    counters = engine.counters
    both = zip(counters.drafts_proposed, counters.drafts_accepted, strict=True)
    return dict(zip(DraftSource, both, strict=True))


@pytest.fixture
def random_rows(monkeypatch: pytest.MonkeyPatch, seeded: random.Random) -> None:
    def choice(most: int, cuts: bool, depths: int) -> RandomRows:
        assert depths
        return RandomRows(most, seeded)

    monkeypatch.setattr(drafter, "DraftChoice", choice)


@both_dtypes
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("random_rows")
def test_rows_of_both_proposers_in_one_step_give_the_bits_of_plain_decoding(
    mtp_checkpoints: MtpCheckpoints, seeded: random.Random, name: str, dtype: torch.dtype
) -> None:
    if library() is None:
        pytest.skip("no C++ compiler")
    config = replace(options(mtp_checkpoints.folder(name), dtype), snapshots_per_prefill=2)
    specs = requests(seeded)
    plain = answered(poisoned(config), specs)
    engine = poisoned(auto(config, seeded.choice([3, 4, 8])))
    assert_same(specs, plain, answered(engine, specs))
    found = by_source(engine)
    assert found[DraftSource.MTP][1] > 5 and found[DraftSource.NGRAM][0] > 5, found


def test_answers_of_the_real_choice_are_plain_ones(
    mtp_checkpoints: MtpCheckpoints, seeded: random.Random
) -> None:
    """Whatever it finds to pay on this machine."""
    config = options(mtp_checkpoints.folder(NAMES[0]))
    plain, engine = poisoned(config), poisoned(auto(config))
    for _ in range(3):
        specs = requests(seeded)
        assert_same(specs, answered(plain, specs), answered(engine, specs))
    assert by_source(engine)[DraftSource.MTP][0] > 0


def test_rows_whose_masks_depend_on_their_tokens_are_not_the_layers(
    mtp_checkpoints: MtpCheckpoints, seeded: random.Random
) -> None:
    config = options(mtp_checkpoints.folder(NAMES[0]))
    engine = load(
        config.model, mtp=None, speculative_algorithm=SpeculativeAlgorithm.AUTO, canary=True
    )
    choice = engine._scheduler._planner._drafter._choice  # type: ignore[union-attr]
    assert choice is not None
    rule = Grammar(GrammarKind.REGEX, "[ab]{30}")
    free, ruled = (
        replace(spec, sampling=SamplingParams(max_tokens=60, ignore_eos=True, grammar=grammar))
        for spec, grammar in zip(requests(seeded, (20, 20)), (None, rule), strict=True)
    )
    if engine.grammars is None:
        pytest.skip("the checkpoint has no tokenizer")
    for spec in (free, ruled):
        engine.submit(spec)
    step_until(engine, lambda _: len(choice._records) == 2)
    guessed = sorted(record.layer is not None for record in choice._records.values())
    assert guessed == [False, True]


def resolved(folder: Path, **more: object) -> bool:
    return configured_model(replace(auto(options(folder)), **more)).mtp  # type: ignore[arg-type]


def save_without_layer(whole: Path, folder: Path) -> None:
    """Save a checkpoint whose layer is counted in config.json, and left out of the files."""
    for path in whole.iterdir():
        if path.suffix != ".safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    layers = configured_model(options(whole)).layers
    prefixes = "mtp.", f"model.layers.{len(layers)}."
    tensors = load_file(whole / "model.safetensors")
    kept = {n: t for n, t in tensors.items() if not n.startswith(prefixes)}
    assert len(kept) < len(tensors)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_drafts_nothing_neither_loads_the_layer_nor_has_room_for_it(
    mtp_checkpoints: MtpCheckpoints, tmp_path: Path, name: str
) -> None:
    whole = mtp_checkpoints.folder(name)
    save_without_layer(whole, tmp_path)
    drafting, off, without = (
        Engine.load(config).plan
        for config in (auto(options(whole)), options(whole), options(tmp_path))
    )
    for part in ("weight_bytes", "page_layout", "slot_layout"):
        assert getattr(off, part) == getattr(without, part) != getattr(drafting, part), part


@pytest.mark.parametrize("name", NAMES)
def test_the_layer_is_run_where_the_files_have_it(
    mtp_checkpoints: MtpCheckpoints, oracle: Oracle, tmp_path: Path, name: str
) -> None:
    whole = mtp_checkpoints.folder(name)
    assert resolved(whole)
    assert not resolved(whole, mtp=False)
    assert not resolved(oracle.checkpoint("granite_moe_nope"))
    save_without_layer(whole, tmp_path)
    assert not resolved(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # for dummy weights
    assert resolved(tmp_path)


def test_an_engine_for_prompts_runs_the_layer_too(mtp_checkpoints: MtpCheckpoints) -> None:
    config = auto(options(mtp_checkpoints.folder(NAMES[0])))
    drafting, prompts = (Engine.load(each).plan for each in (config, config.for_prompts))
    assert prompts.slot_layout == drafting.slot_layout
    assert prompts.page_layout == drafting.page_layout
    assert drafting.model_config.mtp
