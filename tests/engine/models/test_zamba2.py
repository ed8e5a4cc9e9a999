"""Blocks that layers share: which weights a use of one has, and how often they are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import ConfigError
from baton.engine.assembly.loader import declared_weights, load_model
from baton.engine.models.family_table import read_config
from baton.engine.settings.config import EngineConfig
from baton.kernels.dispatch import KernelChoice

CONFIG: dict[str, Any] = {
    "model_type": "zamba2",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
    "num_mem_blocks": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "n_mamba_heads": 4,
    "mamba_d_state": 8,
    "adapter_rank": 4,
    "use_shared_attention_adapter": True,
}
Q = "model.layers.{}.shared_transformer.self_attn.q_proj.weight"
ADAPTER = "model.layers.{}.shared_transformer.self_attn.linear_q_adapter_list.{}.0.weight"


def names(folder: Path, change: dict[str, Any]) -> set[str]:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    config = read_config(folder, torch.float32, torch.float32)
    return set(declared_weights(config).shapes)


def test_uses_take_the_blocks_in_turn_and_adapters_of_their_own(tmp_path: Path) -> None:
    found = names(tmp_path, {})
    assert {layer for layer in range(4) if Q.format(layer) in found} == {1, 2}
    adapters = {(i, j) for i in range(4) for j in range(3) if ADAPTER.format(i, j) in found}
    assert adapters == {(1, 0), (2, 1), (1, 2)}


def test_an_untied_embedding_leaves_the_blocks_apart(tmp_path: Path) -> None:
    found = names(tmp_path, {"tie_word_embeddings": False})
    assert {layer for layer in range(4) if Q.format(layer) in found} == {1, 2, 3}


def test_a_block_saved_once_a_use_is_read_once(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path, CONFIG) / "model.safetensors"
    # Torch's kernels keep matrices as they are in the file; packed ones are padded.
    config = EngineConfig(model=tmp_path, kernels=KernelChoice.TORCH)
    before = load_model(config).weight_bytes
    tensors = load_file(file)
    assert before < 1.01 * sum(tensor.nbytes for tensor in tensors.values())
    save_file({**tensors, Q.format(3): tensors[Q.format(1)].clone()}, file)
    assert load_model(config).weight_bytes == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"use_long_context": True}, "use_long_context is True"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; only 'gelu' works"),
        ({"layers_block_type": ["mamba", "moe", "mamba", "hybrid"]}, "each one of mamba"),
        ({"layers_block_type": ["mamba"]}, "should name num_hidden_layers layers"),
    ],
)
def test_what_it_lacks_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        names(tmp_path, change)
