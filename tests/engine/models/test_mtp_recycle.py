"""The hidden state that a further draft goes on from: behind the last norm, or before it."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mtp_models import MtpCheckpoints, draft, hidden_of
from oracle.mtp import MTP_SPECS
from step_driver import StepDriver
from torch import Tensor

from baton.core.errors import ConfigError
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.models.family_table import FAMILIES, configured_model
from baton.engine.settings.choices import MtpRecycle
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

BOUND = 1e-4
AFTER, BEFORE = MtpRecycle.AFTER_NORM, MtpRecycle.BEFORE_NORM
NAMES = ["qwen3_next_odd", "qwen3_5_moe", "nemotron_moe", "deepseek3_grouped"]


def drafted(config: EngineConfig, ids: list[int]) -> tuple[Tensor, list[int]]:
    """[3, vocab]: the logits of three drafts behind `ids`, and the drafts."""
    driver = StepDriver(load_model(config))
    row = driver.start(ids)
    tokens = [row.tokens.pop()]
    driver.step(prefill=[(row, len(row.tokens))])
    before, found, drafts = hidden_of(driver, [row]), [], []
    for depth in range(3):
        logits, before = draft(driver, [row], tokens, depth, before)
        found.append(logits[0])
        tokens = logits.argmax(-1).tolist()
        drafts += tokens
    return torch.stack(found).double(), drafts


@pytest.mark.parametrize("kernels", [KernelChoice.AUTO, KernelChoice.TORCH])
@pytest.mark.parametrize("recycle", [AFTER, BEFORE])
@pytest.mark.parametrize("name", NAMES)
def test_each_choice_is_that_of_a_float64_reference_and_matters(
    mtp_checkpoints: MtpCheckpoints, name: str, recycle: MtpRecycle, kernels: KernelChoice
) -> None:
    rng = random.Random(name)
    ids = [rng.randrange(3, MTP_SPECS[name].spec.config["vocab_size"]) for _ in range(33)]
    folder = mtp_checkpoints.folder(name)
    config = EngineConfig(model=folder, mtp=True, mtp_recycle=recycle, kernels=kernels)
    logits, drafts = drafted(config, ids)
    reference = mtp_checkpoints.reference(name)
    expected, other = (
        reference.draft(ids, drafts[:2], before_norm=before) for before in (False, True)
    )
    if recycle is BEFORE:
        expected, other = other, expected
    torch.testing.assert_close(logits, expected, rtol=0, atol=BOUND)
    assert torch.equal(expected[0], other[0])  # the first goes on from the model's own
    assert float((expected[1:] - other[1:]).abs().max()) > 100 * BOUND


@pytest.mark.parametrize("name", NAMES)
def test_the_familys_choice_holds_where_the_operator_makes_none(
    mtp_checkpoints: MtpCheckpoints, name: str
) -> None:
    config = EngineConfig(model=mtp_checkpoints.folder(name), mtp=True)
    assert configured_model(config).mtp_recycle is AFTER
    for chosen in MtpRecycle:
        assert configured_model(replace(config, mtp_recycle=chosen)).mtp_recycle is chosen


def test_every_family_with_the_layer_says_what_it_goes_on_from() -> None:
    found = {name: family.mtp.recycle for name, family in FAMILIES.items() if family.mtp}
    assert found == dict.fromkeys(("qwen3_next", "qwen3_5", "nemotron_h", "deepseek_v3"), AFTER)


def test_it_is_refused_where_no_layer_runs(mtp_checkpoints: MtpCheckpoints) -> None:
    folder: Path = mtp_checkpoints.folder(NAMES[0])
    config = EngineConfig(model=folder, mtp_recycle=BEFORE, memory_bytes=1 << 28)
    with pytest.raises(ConfigError, match="mtp_recycle is for drafts of the model's own layer"):
        Engine.load(config)
