"""Qwen3.5 as it is published: inside a model that sees images, experts stacked or one by one."""

import json
import random
from pathlib import Path

import pytest
import torch
from oracle.reference import Oracle
from oracle.specs import SPECS
from safetensors.torch import load_file, save_file
from step_driver import StepDriver
from torch import Tensor

from baton.core.errors import WeightsError
from baton.engine.assembly.loader import load_model
from baton.engine.settings.config import EngineConfig

NAMES = ["qwen3_5_tied", "qwen3_5_moe"]
OTHERS = ("model.visual.blocks.0.attn.qkv.weight", "model.visual.pos_embed.weight", "mtp.fc.weight")


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The experts of each layer as one tensor of gates and ups, and one of downs."""
    kept = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    layers = {name.split(".experts.")[0] for name in tensors.keys() - kept.keys()}
    for layer in layers:
        experts = sum(name.startswith(f"{layer}.experts.") for name in tensors) // 3
        gates, ups, downs = (
            torch.stack([tensors[f"{layer}.experts.{e}.{part}.weight"] for e in range(experts)])
            for part in ("gate_proj", "up_proj", "down_proj")
        )
        kept[f"{layer}.experts.gate_up_proj"] = torch.cat((gates, ups), dim=1)
        kept[f"{layer}.experts.down_proj"] = downs
    return kept


def published(source: Path, folder: Path, stack: bool, extra: tuple[str, ...] = OTHERS) -> Path:
    """The text model in `source` as part of one that sees images; `extra`: other tensors in it."""
    tensors = load_file(source / "model.safetensors")
    if stack:
        tensors = stacked(tensors)
    inside = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in tensors.items()
    }
    config = json.loads((source / "config.json").read_text())
    tied = config.pop("tie_word_embeddings")
    whole = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": config["model_type"].removesuffix("_text"),
        "text_config": config,
        "vision_config": {"depth": 1, "hidden_size": 32},
        "tie_word_embeddings": tied,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(whole))
    save_file(inside | {name: torch.ones(2, 3) for name in extra}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_language_model_in_one_that_sees_images_is_served(
    oracle: Oracle, name: str, stack: bool, tmp_path: Path, seeded: random.Random
) -> None:
    source = oracle.checkpoint(name)
    model = load_model(EngineConfig(model=published(source, tmp_path / "whole", stack)))
    prompt = [seeded.randrange(3, SPECS[name].config["vocab_size"]) for _ in range(80)]
    driver = StepDriver(model)
    oracle.assert_same_logits(source, prompt, driver.prefill(driver.start(prompt)))
    assert model.config.family == "qwen3_5"


def test_other_tensors_beside_it_are_named(oracle: Oracle, tmp_path: Path) -> None:
    folder = published(oracle.checkpoint("qwen3_5_tied"), tmp_path / "x", False, ("model.audio.w",))
    with pytest.raises(WeightsError, match=r"not part of the model \(1\): model\.audio\.w"):
        load_model(EngineConfig(model=folder))
