"""Tests of what configurations say of quantised weights, and of where the files disagree."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from eight_bit_packing import BLOCKS, edit_config, pack
from engine.models.test_deepseek import V3

from baton.bench.checkpoints import write_checkpoint
from baton.core.errors import ConfigError, WeightsError
from baton.engine.assembly.loader import load_model, planned_memory
from baton.engine.models.family_table import read_config
from baton.engine.models.quantised import check_method
from baton.engine.settings.choices import QuantizationMethod
from baton.engine.settings.config import EngineConfig
from baton.engine.settings.quantisation import UNQUANTISED, Quantisation

FLOAT8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": FLOAT8}},
    "ignore": ["lm_head", "re:.*gate$"],
    "kv_cache_scheme": None,
}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}


def groups(weights: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A configuration of compressed-tensors with one group of these weights."""
    return {**COMPRESSED, "config_groups": {"g": {"weights": {**FLOAT8, **weights}, **fields}}}


def read(folder: Path, config: dict[str, Any], modelopt: dict[str, Any] | None = None) -> Any:
    (folder / "config.json").write_text(json.dumps({**V3, **config}))
    if modelopt is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(modelopt))
    return read_config(folder, torch.float32, torch.float32).quantisation


@pytest.mark.parametrize(
    ("section", "wanted"),
    [
        ({"quant_method": "fp8"}, Quantisation("fp8")),
        ({"quant_method": "fp8", "fmt": "float8_e4m3fn"}, Quantisation("fp8")),
        (
            {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 32],
             "modules_to_not_convert": ["lm_head"], "ignored_layers": ["a.b"]},
            Quantisation("fp8", (64, 32), ("lm_head", "a.b")),
        ),
        (
            {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
            Quantisation("fp8"),
        ),
        (COMPRESSED, Quantisation("compressed-tensors FP8", kept=("lm_head", "re:.*gate$"))),
        (
            groups({"strategy": "block", "block_structure": [64, 128]}, format="float-quantized"),
            Quantisation("compressed-tensors FP8", (64, 128), ("lm_head", "re:.*gate$")),
        ),
        (
            groups({"strategy": "block", "block_structure": "128x64"}),
            Quantisation("compressed-tensors FP8", (128, 64), ("lm_head", "re:.*gate$")),
        ),
        (
            groups({"strategy": "group", "group_size": 32}),
            Quantisation("compressed-tensors FP8", (1, 32), ("lm_head", "re:.*gate$")),
        ),
        (
            # As compressed-tensors 0.20 calls FP8 weights without scales of activations.
            groups({}, format="naive-quantized"),
            Quantisation("compressed-tensors FP8", kept=("lm_head", "re:.*gate$")),
        ),
        (
            groups({"type": "int"}, format="int-quantized"),
            Quantisation("compressed-tensors INT8", kept=("lm_head", "re:.*gate$")),
        ),
        (
            groups(
                {"type": "int", "strategy": "group", "group_size": 64}, format="naive-quantized"
            ),
            Quantisation("compressed-tensors INT8", (1, 64), ("lm_head", "re:.*gate$")),
        ),
        (MODELOPT, Quantisation("modelopt FP8", kept=("lm_head",))),
        ({"quant_algo": "FP8"}, Quantisation("modelopt FP8")),
        (
            {**MODELOPT, "quant_algo": "FP8_PB_WO", "group_size": 64},
            Quantisation("modelopt FP8_PB_WO", (64, 64), ("lm_head",)),
        ),
        (
            {**MODELOPT, "quant_algo": "MIXED_PRECISION",
             "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "FP8_PB_WO"}}},
            Quantisation("modelopt MIXED_PRECISION", kept=("lm_head",)),
        ),
    ],
)  # fmt: skip
def test_eight_bits_are_read(tmp_path: Path, section: dict[str, Any], wanted: Quantisation) -> None:
    assert read(tmp_path, {"quantization_config": section}) == wanted
    assert read(tmp_path, {"text_config": {"quantization_config": section}}) == wanted


def test_the_older_name_of_the_section_is_read(tmp_path: Path) -> None:
    older = {name: value for name, value in COMPRESSED.items() if name != "quant_method"}
    wanted = Quantisation("compressed-tensors FP8", kept=("lm_head", "re:.*gate$"))
    for section in (older, COMPRESSED):
        assert read(tmp_path, {"compression_config": section}) == wanted
        assert read(tmp_path, {"text_config": {"compression_config": section}}) == wanted
    own = {"quantization_config": {"quant_method": "fp8"}, "compression_config": older}
    assert read(tmp_path, own).name == "fp8"
    with pytest.raises(ConfigError, match=r"compressed-tensors, format pack-quantized"):
        read(tmp_path, {"compression_config": {**older, "format": "pack-quantized"}})


@pytest.mark.parametrize(
    ("section", "said"),
    [
        *(({"quant_method": name}, rf"quantised \({name}\)") for name in
          ("gptq", "awq", "bitsandbytes", "gguf", "mxfp4", "torchao", "quark", "hqq", "exl3")),
        ({}, r"quantised \(unnamed\)"),
        ({"quant_method": "fp8", "fmt": "e4m3fnuz"}, r"fp8 with fmt e4m3fnuz"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, r"fp8 with expert_dtype fp4"),
        ({**COMPRESSED, "format": "pack-quantized"}, r"compressed-tensors, format pack-quantized"),
        ({**COMPRESSED, "format": "int-quantized"}, r"format int-quantized with float8"),
        (groups({"type": "int"}), r"compressed-tensors, format float-quantized with int8"),
        (groups({"type": "int", "num_bits": 4}, format="int-quantized"), r"with int4"),
        (groups({}, format="nvfp4-pack-quantized"), r"format nvfp4-pack-quantized"),
        ({**COMPRESSED, "config_groups": {}}, r"without config_groups"),
        ({**COMPRESSED, "transform_config": {"config_groups": {"R1": {}}}}, r"transform_config"),
        ({**MODELOPT, "quant_algo": "NVFP4"}, r"modelopt NVFP4"),
        ({**MODELOPT, "quant_algo": "MXFP8"}, r"modelopt MXFP8"),
        (
            {**MODELOPT, "quant_algo": "MIXED_PRECISION",
             "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}}},
            r"modelopt MIXED_PRECISION with NVFP4",
        ),
    ],
)  # fmt: skip
def test_all_else_is_refused_with_what_works(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    for config in (
        {"quantization_config": section},
        {"text_config": {"quantization_config": section}},
    ):
        with pytest.raises(ConfigError, match=f"{said}.*FP8 is read, of quant_method fp8"):
            read(tmp_path, config)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128]}, "should be two sizes"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "should be two sizes"),
        ({**COMPRESSED, "ignore": ["re:(gate"]}, "no regular expression"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "a list of strings"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, section: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, {"quantization_config": section})


def test_the_file_of_modelopt_counts_where_the_config_is_silent(tmp_path: Path) -> None:
    own = {"producer": {"name": "modelopt"},
           "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8",
                            "exclude_modules": ["lm_head", "model.layers.0*"]}}  # fmt: skip
    wanted = Quantisation("modelopt FP8", kept=("lm_head", "model.layers.0*"))
    assert read(tmp_path, {}) == UNQUANTISED
    assert read(tmp_path, {}, own) == wanted
    assert read(tmp_path, {"quantization_config": {"quant_method": "fp8"}}).name == "fp8"
    with pytest.raises(ConfigError, match=r"hf_quant_config.json.*quantised \(modelopt NVFP4\)"):
        read(tmp_path, {}, {"quantization": {"quant_algo": "NVFP4"}})


def test_a_quantised_kv_cache_makes_no_weights_quantised(tmp_path: Path) -> None:
    own = {"quant_algo": None, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    section = {"quant_method": "modelopt", **own}
    assert read(tmp_path, {"quantization_config": section}) == UNQUANTISED
    assert read(tmp_path, {}, {"quantization": own}) == UNQUANTISED


@pytest.mark.parametrize(
    "config_groups",
    [
        {},
        {"g": {"targets": ["re:.*self_attn$"], "weights": None, "input_activations": FLOAT8}},
        {"g": {"targets": ["re:.*self_attn$"], "format": "dense", "output_activations": FLOAT8}},
    ],
    ids=["no groups", "attention", "a format of its own"],
)
def test_nor_does_that_of_compressed_tensors(tmp_path: Path, config_groups: dict[str, Any]) -> None:
    section = {
        "quant_method": "compressed-tensors",
        "format": "dense",
        "config_groups": config_groups,
        "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    }
    assert read(tmp_path, {"quantization_config": section}) == UNQUANTISED
    rotated = {**section, "transform_config": {"config_groups": {"R3": {}}}}
    with pytest.raises(ConfigError, match="transform_config"):
        read(tmp_path, {"quantization_config": rotated})


METHODS = {
    "fp8": {"fp8"},
    "modelopt FP8": {"modelopt", "modelopt_fp8"},
    "modelopt FP8_PB_WO": {"modelopt", "modelopt_fp8"},
    "modelopt MIXED_PRECISION": {"modelopt", "modelopt_mixed"},
    "compressed-tensors FP8": {"compressed-tensors", "w8a8_fp8"},
    "compressed-tensors INT8": {"compressed-tensors", "w8a8_int8"},
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_must_be_the_checkpoint_s(name: str) -> None:
    folder = Path("models/a")
    check_method(None, Quantisation(name), folder)
    for method in QuantizationMethod:
        if method in METHODS[name]:
            check_method(method, Quantisation(name), folder)
            continue
        with pytest.raises(ConfigError) as error:
            check_method(method, Quantisation(name), folder)
        said = f"quantization {method} does not fit models/a, which is quantised by {name}"
        said += ". Leave quantization out, or give "
        text = str(error.value)
        assert text.startswith(said)
        assert set(text.removeprefix(said).split(" or ")) == METHODS[name]
        with pytest.raises(ConfigError, match=r"states none\. Leave .* weight_format int8 rounds"):
            check_method(method, UNQUANTISED, folder)


def test_a_start_with_another_method_is_refused_before_weights_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**V3, "quantization_config": {"quant_method": "fp8"}})
    )
    config = EngineConfig(tmp_path, quantization=QuantizationMethod.MODELOPT)
    for start in (load_model, planned_memory):
        with pytest.raises(ConfigError, match=r"modelopt does not fit .* give fp8"):
            start(config)
    with pytest.raises(WeightsError, match="holds no weights"):
        load_model(EngineConfig(tmp_path, quantization=QuantizationMethod.FP8))


@pytest.mark.parametrize(
    ("entry", "module", "kept"),
    [
        ("lm_head", "lm_head", True),
        ("model.layers.3", "model.layers.3.mlp.up_proj", True),
        ("model.layers.3", "model.layers.31.mlp.up_proj", False),
        ("mlp.gate", "model.layers.3.mlp.gate", True),
        ("mlp.gate", "model.layers.3.mlp.gate_proj", False),
        ("model.layers.3*", "model.layers.31.mlp.gate_proj", True),
        ("*conv1d*", "backbone.layers.0.mixer.conv1d", True),
        ("re:.*gate$", "model.layers.3.mlp.gate", True),
        ("re:.*gate$", "model.layers.3.mlp.gate_proj", False),
        ("re:gate", "model.layers.3.mlp.gate", False),
        ("layers", "model.layers.3.mlp.gate", True),
        ("layer", "model.layers.3.mlp.gate", False),
        ("[ab].x", "b.x", True),
    ],
)
def test_lists_are_matched_in_every_quantiser_s_way(entry: str, module: str, kept: bool) -> None:
    assert Quantisation("", kept=(entry,)).keeps(module) == kept


def warnings(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO):
        load_model(EngineConfig(folder))
    lines = [r for r in caplog.records if "8-bit weights" in r.message or "disagree" in r.message]
    assert any("3 8-bit weights" in record.message for record in lines)
    return [record.message for record in lines if record.levelno == logging.WARNING]


def test_one_warning_names_the_modules_of_which_config_and_files_disagree(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = write_checkpoint(tmp_path / "plain", V3)
    forms = {"*.layers.0.mlp.*.weight": BLOCKS}
    section = {
        "quant_method": "fp8",
        "modules_to_not_convert": ["layers.1", "self_attn", "lm_head"],
    }
    folder = pack(plain, forms, "_scale_inv", {"quantization_config": section}).packed
    assert warnings(folder, caplog) == []

    listed = ["layers.1", "self_attn", "model.layers.0.mlp.up_proj"]
    edit_config(folder, {"quantization_config": {**section, "modules_to_not_convert": listed}})
    (line,) = warnings(folder, caplog)
    assert line.endswith(
        "disagree, and the files are followed: quantised in the files, though listed as not "
        "converted: model.layers.0.mlp.up_proj; not quantised in the files, though not listed: "
        "lm_head"
    )

    # DeepSeek's have no list, and leave head, embedding and routers as they are.
    edit_config(folder, {"quantization_config": {"quant_method": "fp8"}})
    assert warnings(folder, caplog) == []

    edit_config(folder, {"quantization_config": None})
    (line,) = warnings(folder, caplog)
    assert "its config (no quantisation)" in line
    assert "model.layers.0.mlp.down_proj" in line and "lm_head" not in line
