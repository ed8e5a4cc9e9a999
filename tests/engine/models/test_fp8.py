"""FP8 checkpoints of every way of naming, loaded whole and in parts, beside the same weights
expanded by a reference of the tests' own."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from eight_bit_packing import (
    BLOCKS,
    EXPONENTS,
    FILE,
    ROWS,
    WHOLE,
    Form,
    Pair,
    edit_tensors,
    in_blocks,
    pack,
    rounded_rows,
)
from rank_models import say_together
from safetensors.torch import load_file
from step_driver import StepDriver
from torch import Tensor

from baton.bench.checkpoints import write_checkpoint
from baton.deploy.cluster.preflight import check_model
from baton.engine.assembly.loader import build_model, load_model, planned_memory
from baton.engine.collectives.comm import Shard
from baton.engine.loading import weights
from baton.engine.loading.expansion import expand
from baton.engine.loading.weight_part import WHOLE as ALL
from baton.engine.loading.weight_part import WeightPart
from baton.engine.loading.weights import Checkpoint, Shape
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

CPU = torch.device("cpu")
PROMPT = [5, 17, 300, 4, 111, 42, 7, 256, 91, 3, 88, 130]
ANSWER = 12  # tokens
# Sides of two blocks and a half. KV heads and a delta net's heads of 64 channels: two ranks have
# half a block of 128 each.
_SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 320,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 416,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
LLAMA = {**_SIZES, "model_type": "llama", "num_hidden_layers": 2}
_GRANITE = {
    **_SIZES,
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 2,
    "layer_types": ["mamba", "attention"],
    "num_attention_heads": 10,
    "head_dim": 32,
    "mamba_n_heads": 10,
    "mamba_d_head": 64,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "shared_intermediate_size": 416,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "intermediate_size": 288,
}
_NEMOTRON = {
    **_SIZES,
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-*E",
    "num_hidden_layers": 4,
    "mamba_num_heads": 6,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 288,
    "moe_shared_expert_intermediate_size": 288,
}
_QWEN = {
    **_SIZES,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 288,
    "shared_expert_intermediate_size": 288,
}
_DEEPSEEK = {
    **_SIZES,
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "num_key_value_heads": 6,
    "q_lora_rank": 288,
    "kv_lora_rank": 288,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 288,
}
_KIMI = {
    **_DEEPSEEK,
    "model_type": "kimi_linear",
    "layer_types": ["linear_attention", "full_attention"],
    "linear_attn_config": {"num_heads": 6, "head_dim": 64, "short_conv_kernel_size": 4},
    "q_lora_rank": None,
    "num_experts": 4,
}
BY_BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
_BY_ROW = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "ignore": ["lm_head", "re:.*router.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        }
    },
}
_BY_TENSOR = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
_ATTENTION = "*.self_attn.?_proj.weight"


@dataclass(frozen=True)
class Case:
    """A family, and what of it is in FP8 in which form."""

    config: Mapping[str, Any]
    quantisation: Mapping[str, Any]
    scale: str
    forms: Mapping[str, Form]
    split_experts: bool = False  # of Granite, each expert's matrices become tensors of their own


CASES = {
    "llama": Case(
        LLAMA,
        BY_BLOCK,
        "_scale_inv",
        {"*.mlp.*.weight": BLOCKS, _ATTENTION: BLOCKS, "lm_head.weight": BLOCKS,
         "*embed_tokens.weight": ROWS},
    ),
    "granite, stacked": Case(
        _GRANITE,
        _BY_ROW,
        "_scale",
        {"*_linear.weight": rounded_rows, "*.in_proj.weight": ROWS, "*.out_proj.weight": ROWS,
         _ATTENTION: ROWS},
    ),
    "granite, an expert each": Case(
        _GRANITE,
        _BY_ROW,
        "_scale",
        {"*_linear.weight": ROWS, "*.experts.*.weight": rounded_rows},
        split_experts=True,
    ),
    "nemotron": Case(
        _NEMOTRON,
        _BY_TENSOR,
        "_scale",
        {"*.mixer.*_proj.weight": WHOLE},
    ),
    "qwen3_next": Case(
        {**_QWEN, "model_type": "qwen3_next"},
        BY_BLOCK,
        "_scale_inv",
        # `in_proj_ba` stays as it is, though it is computed with `in_proj_qkvz` as one.
        {"*.in_proj_qkvz.weight": BLOCKS, "*.out_proj.weight": BLOCKS, _ATTENTION: BLOCKS,
         "*.experts.*.weight": BLOCKS, "*.shared_expert.*.weight": BLOCKS},
    ),
    "qwen3_5": Case(
        {**_QWEN, "model_type": "qwen3_5"},
        BY_BLOCK,
        "_scale_inv",
        {"*.in_proj_qkv.weight": BLOCKS, "*.in_proj_z.weight": EXPONENTS, _ATTENTION: BLOCKS},
    ),
    "deepseek3": Case(
        _DEEPSEEK,
        {**BY_BLOCK, "scale_fmt": "ue8m0"},
        "_scale_inv",
        {"*_proj.weight": EXPONENTS, "*_proj_with_mqa.weight": EXPONENTS},
    ),
    "kimi": Case(
        _KIMI,
        BY_BLOCK,
        "_scale_inv",
        {"*.w?.weight": BLOCKS, "*.kv_b_proj.weight": BLOCKS, _ATTENTION: WHOLE},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    return {name: packed(case, tmp_path_factory.mktemp("fp8")) for name, case in CASES.items()}


def packed(case: Case, folder: Path, dtype: torch.dtype = torch.float32) -> Pair:
    plain = write_checkpoint(folder / "plain", case.config, dtype, seed=11)
    if case.split_experts:
        split_experts(plain)
    config = {"quantization_config": dict(case.quantisation)}
    return pack(plain, case.forms, case.scale, config)


def split_experts(folder: Path) -> None:
    """Give each of Granite's experts three tensors, as llm-compressor does."""
    change: dict[str, Tensor | None] = {}
    for name, tensor in load_file(folder / FILE).items():
        module, _, end = name.partition(".block_sparse_moe.")
        if end in ("input_linear.weight", "output_linear.weight"):
            change[name] = None
            for number, expert in enumerate(tensor):
                prefix = f"{module}.block_sparse_moe.experts.{number}"
                if end == "input_linear.weight":
                    gate, up = expert.chunk(2)
                    change[f"{prefix}.gate_proj.weight"] = gate
                    change[f"{prefix}.up_proj.weight"] = up
                else:
                    change[f"{prefix}.down_proj.weight"] = expert
    edit_tensors(folder, change)


def logits(config: EngineConfig) -> Tensor:
    driver = StepDriver(load_model(config))
    return driver.prefill(driver.start(PROMPT))


class BothRead:
    """A source that reads from two checkpoints, which must give the same bits."""

    def __init__(self, pair: Pair, dtype: torch.dtype) -> None:
        self._packed = Checkpoint(pair.packed, dtype=dtype)
        self._expanded = Checkpoint(pair.expanded)
        self._dtype = dtype
        self._quantised = pair.quantised
        self.compared: set[str] = set()

    def holds(self, name: str) -> bool:
        return self._packed.holds(name)

    def differs(self, name: str, other: str) -> bool:
        assert self._packed.differs(name, other) == self._expanded.differs(name, other)
        return self._packed.differs(name, other)

    def tensor(self, name: str, shape: Shape, part: WeightPart = ALL) -> Tensor:
        found = self._packed.tensor(name, shape, part)
        wanted = self._expanded.tensor(name, shape, part)
        if name in self._quantised:
            self.compared.add(name)
            wanted = wanted.to(self._dtype)
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert torch.equal(found.float().view(torch.int32), wanted.float().view(torch.int32)), name
        return found

    def release(self, name: str) -> None:
        self._packed.release(name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_part_has_the_bits_of_the_reference(
    pairs: dict[str, Pair], name: str, ranks: int, dtype: torch.dtype
) -> None:
    config = read_config(pairs[name].packed, dtype, torch.float32)
    for rank in range(ranks):
        source = BothRead(pairs[name], dtype)
        build_model(config, source, CPU, Shard(rank, ranks))
        assert source.compared == pairs[name].quantised


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_the_expanded_checkpoint(
    pairs: dict[str, Pair], name: str, ranks: int
) -> None:
    pair = pairs[name]
    driver = StepDriver(load_model(EngineConfig(pair.expanded)))
    row = driver.start(PROMPT)
    likeliest = int(driver.prefill(row)[-1].argmax())
    answer: list[int] = []
    for _ in range(ANSWER):
        answer.append(likeliest)
        row.tokens.append(likeliest)
        likeliest = int(driver.step(decode=[row])[0].argmax())
    assert len(set(answer)) > 2, "the model repeats itself, and would hide errors"
    wanted = say_together(pair.expanded, PROMPT, answer, ranks, KernelChoice.AUTO)
    found = say_together(pair.packed, PROMPT, answer, ranks, KernelChoice.AUTO)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    assert found[len(PROMPT) - 1 : -1].argmax(dim=-1).tolist() == answer


def test_memory_is_that_of_the_expanded_weights(pairs: dict[str, Pair]) -> None:
    for name in ("nemotron", "deepseek3"):
        for dtype in (torch.float32, torch.bfloat16):
            options = [
                EngineConfig(
                    folder, dtype=dtype, weight_format=WeightFormat.MODEL, memory_bytes=1 << 30
                )
                for folder in (pairs[name].packed, pairs[name].expanded)
            ]
            loaded = [load_model(each).weight_bytes for each in options]
            planned = [planned_memory(each).weight_bytes for each in options]
            assert loaded[0] == loaded[1] and planned[0] == planned[1]
            assert planned[0] <= loaded[0]  # packed matrices may be padded


def test_progress_counts_the_bytes_of_the_files(pairs: dict[str, Pair]) -> None:
    pair = pairs["qwen3_5"]
    seen: list[tuple[int, int]] = []
    load_model(EngineConfig(pair.packed), lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    tensors = load_file(pair.packed / FILE)
    whole = sum(t.nbytes for name, t in tensors.items() if not name.endswith("_scale_inv"))
    assert seen[-1] == (whole, whole)


def test_weights_may_be_rounded_to_int8_instead(pairs: dict[str, Pair]) -> None:
    pair = pairs["llama"]
    rounded = logits(EngineConfig(pair.packed, weight_format=WeightFormat.INT8))
    wanted = logits(EngineConfig(pair.expanded, weight_format=WeightFormat.INT8))
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=1e-5)
    assert not torch.equal(rounded, logits(EngineConfig(pair.packed)))


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "other"])
def test_a_head_in_fp8_is_compared_with_the_embedding_by_value(tmp_path: Path, equal: bool) -> None:
    plain = write_checkpoint(tmp_path / "plain", {**LLAMA, "tie_word_embeddings": True}, seed=4)
    forms = {"*embed_tokens.weight": BLOCKS}
    pair = pack(plain, forms, "_scale_inv", {"quantization_config": BY_BLOCK})
    options = EngineConfig(pair.packed, weight_format=WeightFormat.MODEL)
    tied = load_model(options).weight_bytes
    table = load_file(pair.packed / FILE)["model.embed_tokens.weight_scale_inv"]
    stored = load_file(pair.packed / FILE)["model.embed_tokens.weight"]
    scales = table if equal else table * 1.5
    edit_tensors(
        pair.packed, {"lm_head.weight": stored.clone(), "lm_head.weight_scale_inv": scales.clone()}
    )
    more = load_model(options).weight_bytes - tied
    assert more == 0 if equal else more >= 320 * 320 * 4


def test_experts_of_their_own_are_those_that_are_stacked(tmp_path: Path) -> None:
    stacked = write_checkpoint(tmp_path / "stacked", _GRANITE, seed=6)
    split = shutil.copytree(stacked, tmp_path / "split")
    split_experts(split)
    for ranks in (1, 2):
        found, wanted = (say_together(each, PROMPT, [7], ranks) for each in (split, stacked))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


def test_blocks_have_the_size_that_the_config_names(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", LLAMA, seed=8)
    config = {"quantization_config": {**BY_BLOCK, "weight_block_size": [96, 64]}}
    pair = pack(plain, {"*_proj.weight": in_blocks(96, 64)}, "_scale_inv", config)
    options = EngineConfig(pair.packed, memory_bytes=1 << 30)
    check_model(options)
    assert planned_memory(options).weight_bytes <= load_model(options).weight_bytes
    wanted = logits(EngineConfig(pair.expanded))
    torch.testing.assert_close(logits(options), wanted, rtol=0, atol=1e-5)


def test_a_model_in_bfloat16_never_holds_a_weight_in_float32(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.dtype] = []

    def watched(*given: Any) -> Tensor:
        expanded = expand(*given)
        made.append(expanded.dtype)
        return expanded

    monkeypatch.setattr(weights, "expand", watched)
    folder = pairs["deepseek3"].packed
    load_model(EngineConfig(folder, dtype=torch.bfloat16, weight_format=WeightFormat.MODEL))
    assert len(made) == len(pairs["deepseek3"].quantised)
    assert set(made) == {torch.bfloat16}
