"""`baton models`: what can be served, and what a folder that cannot be lacks."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from oracle.specs import DENSE, SPECS

from baton.deploy.commands.models import models
from baton.deploy.errors import StartError
from baton.engine.models.family_table import FAMILIES

NEMOTRON = {
    "model_type": "nemotron_h",
    "hidden_size": 64,
    "vocab_size": 320,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "hybrid_override_pattern": "M-*E",
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 16,
    "intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32,
}


def write(folder: Path, fields: dict[str, object]) -> str:
    (folder / "config.json").write_text(json.dumps(fields))
    return str(folder)


def test_every_family_is_listed() -> None:
    ran = CliRunner().invoke(models, env={"COLUMNS": "120"})
    assert ran.exit_code == 0
    for name, family in FAMILIES.items():
        (line,) = [row for row in ran.output.splitlines() if row.split()[:1] == [name]]
        assert family.architecture in line and ", ".join(family.verified) in line


def test_what_is_said_to_be_verified_has_checkpoints() -> None:
    for name, family in FAMILIES.items():
        of_it = [spec for spec in SPECS.values() if spec.family == name]
        assert ("fp32" in family.verified) == (len(of_it) >= 2), name
        assert ("bf16" in family.verified) == any(spec.name in DENSE for spec in of_it), name


def test_a_folder_is_described(tmp_path: Path) -> None:
    ran = CliRunner().invoke(models, ["--model", write(tmp_path, NEMOTRON)])
    assert ran.exit_code == 0
    assert ran.output.startswith("nemotron_h: 4 layers (1 mamba2, 1 attention), up to 512 tokens")
    assert ran.output.endswith("256 bytes of KV a token, in bfloat16\n")
    quantised = {
        **NEMOTRON,
        "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"},
    }
    ran = CliRunner().invoke(models, ["--model", write(tmp_path, quantised)])
    assert ran.exit_code == 0
    assert "; weights by modelopt FP8, which --weight-format keeps or expands" in ran.output


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ssm_state_size": None, "vocab_size": None}, "lacks vocab_size, ssm_state_size"),
        ({"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
        ({"hybrid_override_pattern": "MX*"}, "unknown layer types X"),
        ({"mlp_hidden_act": "silu"}, "mlp_hidden_act is 'silu'; only 'relu2' works"),
        ({"quantization_config": {"quant_method": "awq"}}, r"quantised \(awq\).*FP8 is read"),
        ({"n_group": 3}, "4 experts cannot be chosen from 1 of 3 groups"),
        ({"model_type": "rwkv7"}, "model_type 'rwkv7' is not supported; supported are"),
    ],
)
def test_a_folder_that_cannot_be_served_says_what_it_lacks(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    folder = write(tmp_path, {**NEMOTRON, **change})
    with pytest.raises(StartError, match=said):
        models.callback(Path(folder))  # type: ignore[misc]
