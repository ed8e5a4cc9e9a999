"""Two tensor-parallel ranks, a thread each, say together what one rank says alone, where no experts
are nearly tied."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle.decided import decided
from oracle.reference import LOGIT_BOUND, near_ties
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.core.errors import ConfigError
from baton.engine.config import ModelConfig
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.models.loader import build_model
from baton.engine.ranks.comm import Comm, Shard

RANKS = 2
ANSWER = 8  # tokens
SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "mamba_expand": 2,
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
    "max_position_embeddings": 128,
}
GRANITE: dict[str, Any] = {
    **GRANITE_SMALL,
    **SMALL,
    "layer_types": ["mamba", "attention"],
    "shared_intermediate_size": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
BAMBA: dict[str, Any] = {
    **SMALL,
    "model_type": "bamba",
    "attn_layer_indices": [1],
    "mlp_bias": True,
    "attention_bias": True,
    "mamba_proj_bias": True,
}
QWEN: dict[str, Any] = {**SMALL, "model_type": "qwen3", "head_dim": 12, "attention_bias": True}
MAMBA: dict[str, Any] = {
    **SMALL,
    "model_type": "mamba2",
    "num_heads": 4,
    "head_dim": 16,
    "n_groups": 2,
    "state_size": 8,
    "chunk_size": 16,
}
NEMOTRON: dict[str, Any] = {
    **MAMBA,
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "ME*-",
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "mlp_bias": True,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "moe_latent_size": 16,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
}
FALCON: dict[str, Any] = {
    **BAMBA,
    "model_type": "falcon_h1",
    "mamba_d_ssm": 64,
    "projectors_bias": True,
    "ssm_multipliers": [0.8, 1.1, 0.9, 1.2, 0.7],
    "key_multiplier": 0.7,
}
LFM2: dict[str, Any] = {
    **SMALL,
    "model_type": "lfm2",
    "full_attn_idxs": [1],
    "conv_bias": True,
    "block_multiple_of": 8,
}
DEEPSEEK: dict[str, Any] = {
    **SMALL,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "attention_bias": True,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
}
ZAMBA: dict[str, Any] = {
    **SMALL,
    "model_type": "zamba2",
    "num_hidden_layers": 3,
    "layers_block_type": ["mamba", "hybrid", "hybrid"],
    "num_key_value_heads": 4,
    "n_mamba_heads": 4,
    "mamba_ngroups": 2,
    "chunk_size": 16,
    "adapter_rank": 6,
    "use_shared_attention_adapter": True,
    "add_bias_linear": True,
}
QWEN_NEXT: dict[str, Any] = {
    **SMALL,
    "model_type": "qwen3_next",
    "head_dim": 16,
    "attention_bias": True,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "decoder_sparse_step": 2,
}
QWEN_3_5: dict[str, Any] = {**QWEN_NEXT, "model_type": "qwen3_5", "tie_word_embeddings": True}
KIMI: dict[str, Any] = {
    **DEEPSEEK,
    "model_type": "kimi_linear",
    "num_experts": 4,
    "linear_attn_config": {
        "full_attn_layers": [2],
        "kda_layers": [1],
        "head_dim": 8,
        "num_heads": 4,
        "short_conv_kernel_size": 3,
    },
}
FAMILIES = (
    GRANITE, BAMBA, QWEN, MAMBA, NEMOTRON, FALCON, LFM2, DEEPSEEK, ZAMBA, QWEN_NEXT, QWEN_3_5, KIMI
)  # fmt: skip


class ThreadComm:
    """Adds up the ranks' parts in memory. Shared by the ranks; each calls it from its thread."""

    def __init__(self, ranks: int) -> None:
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._parts: list[Tensor] = []
        self._lock = threading.Lock()

    def all_reduce(self, x: Tensor) -> Tensor:
        with self._lock:
            self._parts.append(x)
        self._barrier.wait()
        total = torch.stack(self._parts).sum(dim=0)
        if self._barrier.wait() == 0:
            self._parts.clear()
        self._barrier.wait()
        return total


def part_of(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The configuration with the states that one rank holds."""
    recurrent = tuple(shape.shard(shard.rank, shard.size) for shape in config.recurrent)
    attention = tuple(shape.shard(shard.rank, shard.size) for shape in config.attention)
    return replace(config, recurrent=recurrent, attention=attention)


@dataclass(frozen=True)
class Said:
    """The output of one rank: logits [prompt + answer, vocab] float32, and the answer."""

    logits: Tensor
    answer: list[int]


def say(
    folder: Path, prompt: list[int], answer: list[int], shard: Shard, comm: Comm | None
) -> Said:
    """Read `prompt`, then be given the tokens of `answer`; greedy ones of its own where it is
    empty."""
    config = read_config(folder, torch.float32, torch.float32)
    model = build_model(config, Checkpoint(folder), torch.device("cpu"), shard=shard, comm=comm)
    driver = StepDriver(replace(model, config=part_of(config, shard)))
    row = driver.start(prompt)
    logits = [driver.prefill(row, chunk=20)]
    for number in range(ANSWER):
        row.tokens.append(answer[number] if answer else int(logits[-1][-1].argmax()))
        logits += [step.clone() for step in driver.step(decode=[row])]
    return Said(torch.cat(logits), row.tokens[len(prompt) :])


@pytest.mark.parametrize("fields", FAMILIES, ids=lambda fields: fields["model_type"])
def test_ranks_agree_with_the_whole(tmp_path: Path, fields: dict[str, Any]) -> None:
    def alone() -> tuple[Path, list[int], Said]:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        folder = write_checkpoint(tmp_path / str(seed), fields, seed=seed)
        rng = random.Random(seed)
        prompt = [rng.randrange(300) for _ in range(37)]
        return folder, prompt, say(folder, prompt, [], Shard(), None)

    folder, prompt, whole = decided(alone)
    comm = ThreadComm(RANKS)

    def together(rank: int) -> Said:
        return say(folder, prompt, whole.answer, Shard(rank, RANKS), comm)

    with ThreadPoolExecutor(RANKS) as pool:
        for said in pool.map(together, range(RANKS)):
            torch.testing.assert_close(said.logits, whole.logits, rtol=0, atol=LOGIT_BOUND)
            likeliest = said.logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
            # Another one is no more than a near tie of two logits, by the bound above.
            ties = near_ties(whole.logits[len(prompt) - 1 : -1], likeliest, LOGIT_BOUND)
            assert ties <= 1, "too many to be near ties"


def test_what_cannot_be_divided_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, {**GRANITE, "mamba_n_groups": 1})
    config = read_config(folder, torch.float32, torch.float32)
    with pytest.raises(ConfigError, match=r"Mamba groups \(1\) cannot be divided among 2 ranks"):
        build_model(config, Checkpoint(folder), torch.device("cpu"), shard=Shard(0, 2))
