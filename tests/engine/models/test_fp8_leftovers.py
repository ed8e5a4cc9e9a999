"""Tests of FP8 checkpoints that hold more than the model: ignored parts, scales of no weight."""

from pathlib import Path

import pytest
import torch
from eight_bit_packing import BLOCKS, edit_config, pack
from engine.models.test_fp8 import BY_BLOCK, CASES, LLAMA, logits

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import WeightsError
from baton.engine.assembly.loader import load_model, planned_memory
from baton.engine.settings.config import EngineConfig


def test_what_a_family_ignores_refuses_no_load(tmp_path: Path) -> None:
    """Drafting layers and towers of vision, whose FP8 weights and scales nobody reads."""
    case = CASES["qwen3_5"]
    plain = write_checkpoint(tmp_path / "plain", case.config, seed=11)
    numbers = torch.ones(8, 8).to(torch.float8_e4m3fn)
    more = {
        f"{place}.{name}": tensor.clone()
        for place in ("mtp.layers.0", "model.visual.blocks.0")
        for name, tensor in {
            "bare.weight": numbers,
            "lost.weight_scale_inv": torch.ones(1),
            "wide.weight": torch.ones(8, 8),
            "wide.weight_scale": torch.ones(1),
            "bent.weight": numbers,
            "bent.weight_scale_inv": torch.ones(3, 3),
        }.items()
    }
    config = {"quantization_config": dict(case.quantisation)}
    pair = pack(plain, case.forms, case.scale, config, more)
    options = EngineConfig(pair.packed, memory_bytes=1 << 30)
    assert planned_memory(options).weight_bytes > 0
    wanted = logits(EngineConfig(pair.expanded))
    torch.testing.assert_close(logits(options), wanted, rtol=0, atol=1e-5)


def test_a_scale_may_stay_of_a_head_that_is_the_embedding(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", {**LLAMA, "tie_word_embeddings": True}, seed=4)
    left = {"lm_head.weight_scale": torch.ones(())}
    config = {"quantization_config": BY_BLOCK}
    pair = pack(plain, {"*.mlp.*.weight": BLOCKS}, "_scale_inv", config, left)
    wanted = logits(EngineConfig(pair.expanded))
    torch.testing.assert_close(logits(EngineConfig(pair.packed)), wanted, rtol=0, atol=1e-5)
    edit_config(pair.packed, {"tie_word_embeddings": False})
    with pytest.raises(WeightsError, match=r"lm_head.weight_scale is a scale without its weight"):
        load_model(EngineConfig(pair.packed))
