"""Reading config.json: what is understood, and what is said of what is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.bench.checkpoints import GRANITE_SMALL
from baton.core.errors import ConfigError
from baton.engine.assembly.loader import declared_weights
from baton.engine.layout.layout import AttentionShape
from baton.engine.models.family_table import FAMILIES, read_config
from baton.engine.models.fields import Fields
from baton.engine.models.layers.mamba2 import read_dt_limit
from baton.engine.settings.config import Mixer, ModelConfig

BAMBA: dict[str, Any] = {
    "model_type": "bamba",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_layer_indices": [1],
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
}


def read(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return read_config(folder, torch.float32, torch.float32)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


@pytest.mark.parametrize(
    ("mamba", "attention"), [("mamba", "attention"), ("linear_attention", "full_attention")]
)
def test_both_spellings_of_layer_types_mean_the_same(
    tmp_path: Path, mamba: str, attention: str
) -> None:
    config = read(tmp_path, {**GRANITE_SMALL, "layer_types": [mamba, mamba, mamba, attention] * 2})
    assert config.layers == (*((Mixer.MAMBA2,),) * 3, (Mixer.ATTENTION,)) * 2
    assert len(config.recurrent) == 6
    assert config.recurrent[0].conv == (16 * 32 + 2 * 64, 3)
    assert config.recurrent[0].ssm == (16, 32, 64)
    assert list(config.attention) == [AttentionShape(2, 32)] * 2


@pytest.mark.parametrize("positions", [None, "nope", "rope"])
def test_every_spelling_of_positions_builds(tmp_path: Path, positions: str | None) -> None:
    config = read(tmp_path, {**GRANITE_SMALL, "position_embedding_type": positions})
    assert "model.layers.3.self_attn.q_proj.weight" in declared_weights(config).shapes


def test_bamba_names_its_attention_layers_by_index(tmp_path: Path) -> None:
    config = read(tmp_path, BAMBA)
    assert config.layers == ((Mixer.MAMBA2,), (Mixer.ATTENTION,), (Mixer.MAMBA2,))
    assert config.mamba_chunk_size == 256
    assert config.recurrent[0].ssm == (8, 16, 16)  # head_dim is worked out


def test_a_family_is_found_by_its_architecture_too(tmp_path: Path) -> None:
    fields = {**without(BAMBA, "model_type"), "architectures": ["BambaForCausalLM"]}
    assert read(tmp_path, fields).family == "bamba"


@pytest.mark.parametrize(
    ("model_type", "architecture", "said"),
    [
        ("jamba", "GraniteMoeHybridForCausalLM", "goes with model_type 'granitemoehybrid'"),
        ("bamba", "GraniteMoeHybridForCausalLM", "model_type 'bamba' with BambaForCausalLM"),
        ("bamba", "BambaForSequenceClassification", "should name BambaForCausalLM"),
    ],
)
def test_model_type_and_architectures_must_agree(
    tmp_path: Path, model_type: str, architecture: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read(tmp_path, {**BAMBA, "model_type": model_type, "architectures": [architecture]})
    assert repr(model_type) in str(caught.value) and architecture in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [
        (None, (0.0, float("inf"))),
        ([0.0, float("inf")], (0.0, float("inf"))),
        ([0.001, {"__float__": "Infinity"}], (0.001, float("inf"))),
        ([0.001, 0.1], (0.001, 0.1)),
        ([0.0, None], (0.0, float("inf"))),
        ([None, 0.1], (0.0, 0.1)),
        ([0.001, "inf"], (0.001, float("inf"))),
        ([0, 1e39], (0.0, 1e39)),
    ],
)
def test_time_step_limits_in_every_spelling(limit: Any, wanted: tuple[float, float]) -> None:
    assert read_dt_limit(Fields({"time_step_limit": limit}, "config.json")) == wanted


def test_ends_of_sequence_come_from_both_files(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9]}')
    assert read(tmp_path, GRANITE_SMALL).eos_token_ids == (2, 7, 9)
    assert read(tmp_path, {**GRANITE_SMALL, "eos_token_id": None}).eos_token_ids == (7, 2, 9)


def test_states_take_their_own_types(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GRANITE_SMALL))
    config = read_config(tmp_path, torch.bfloat16, torch.float32)
    assert (config.dtype, config.conv_dtype, config.ssm_dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no model folder .*absent"):
        read_config(tmp_path / "absent", torch.float32, torch.float32)


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        read_config(tmp_path, torch.float32, torch.float32)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe\x00"])
def test_a_config_that_is_not_a_json_object_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path, torch.float32, torch.float32)


def test_an_unknown_family_is_told_which_are_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]})
    assert "'gpt2'" in str(raised.value)
    assert all(name in str(raised.value) for name in FAMILIES)


@pytest.mark.parametrize("fields", [GRANITE_SMALL, BAMBA])
def test_every_missing_field_is_named_at_once(tmp_path: Path, fields: dict[str, Any]) -> None:
    absent = ("vocab_size", "mamba_n_heads", "max_position_embeddings")
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, without(fields, *absent))
    assert all(name in str(raised.value) for name in absent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": "64"}, "hidden_size should be an integer"),
        ({"hidden_size": True}, "hidden_size should be an integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers should be an integer of at least 1"),
        ({"num_hidden_layers": 9}, "8 layer types for num_hidden_layers = 9"),
        ({"layer_types": ["mamba"] * 7 + ["rwkv"]}, "unknown layer types rwkv"),
        ({"layer_types": "mamba"}, "layer_types should be a list of strings"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"position_embedding_type": "alibi"}, "alibi"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"mamba_n_groups": 3}, "multiple of mamba_n_groups"),
        ({"mamba_d_head": 31}, "mamba_expand x hidden_size"),
        ({"time_step_limit": [0.0]}, "time_step_limit should be two numbers"),
        ({"time_step_limit": [0.0, True]}, "time_step_limit should be two numbers"),
        ({"time_step_limit": [0.0, "much"]}, "time_step_limit should be two numbers"),
        ({"time_step_limit": 0.1}, "time_step_limit should be two numbers"),
        ({"time_step_limit": [1.0, 0.0]}, "time_step_limit should be a least and a largest"),
        ({"time_step_limit": [0.0, float("nan")]}, "time_step_limit should be a least and a la"),
        ({"time_step_limit": [float("inf"), None]}, "time_step_limit should be a least and a l"),
        ({"time_step_limit": [-2.0, -1.0]}, "time_step_limit should be a least and a largest"),
        (
            {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 30},
            "multiples of 16 bytes",
        ),
        (
            {"num_local_experts": 4, "num_experts_per_tok": 5, "intermediate_size": 32},
            "5 of 4 a token",
        ),
        ({"residual_multiplier": "x"}, "residual_multiplier should be a number"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        declared_weights(read(tmp_path, {**GRANITE_SMALL, **change}))


def test_rotary_scaling_that_we_lack_is_refused(tmp_path: Path) -> None:
    scaling = {"rope_type": "longrope", "factor": 4.0}
    with pytest.raises(ConfigError, match="longrope"):
        declared_weights(read(tmp_path, {**BAMBA, "rope_scaling": scaling}))
