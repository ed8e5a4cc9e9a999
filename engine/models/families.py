"""The one table of model families, and reading a model folder's configuration by it.

To add a family: one file beside this one that composes `layers/` and ends in a `FAMILY`, and its
line in the table.
"""

from pathlib import Path

import torch

from baton.engine.config import ModelConfig
from baton.engine.errors import ConfigError
from baton.engine.models import (
    bamba,
    deepseek_v2,
    deepseek_v3,
    falcon_h1,
    granite,
    granitemoehybrid,
    kimi_linear,
    lfm2,
    llama,
    mamba2,
    nemotron_h,
    qwen3,
    qwen3_5,
    qwen3_next,
    zamba2,
)
from baton.engine.models.family import DTypes, Family
from baton.engine.models.fields import Fields, read_fields

FAMILIES: dict[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (
        bamba,
        deepseek_v2,
        deepseek_v3,
        falcon_h1,
        granite,
        granitemoehybrid,
        kimi_linear,
        lfm2,
        llama,
        mamba2,
        nemotron_h,
        qwen3,
        qwen3_5,
        qwen3_next,
        zamba2,
    )
}


def family_of(fields: Fields) -> Family:
    """By `model_type`, or by architecture where there is no model_type that we know."""
    model_type = fields.raw.get("model_type")
    for family in FAMILIES.values():
        if model_type in (family.model_type, *family.aliases):
            return family
    architectures = fields.texts("architectures") if fields.has("architectures") else ()
    for family in FAMILIES.values():
        if family.architecture in architectures:
            return family
    raise ConfigError(
        f"{fields.where}: model_type {model_type!r} is not supported; "
        f"supported are {', '.join(sorted(FAMILIES))}"
    )


def read_config(folder: Path, dtype: torch.dtype, ssm_dtype: torch.dtype) -> ModelConfig:
    """The configuration in a Hugging Face model folder.

    dtype: of weights, activations, KV and conv state; ssm_dtype: of the SSM state in the pool.
    """
    fields = read_fields(folder)
    if fields.has("quantization_config"):
        method = fields.section("quantization_config").text("quant_method", "an unnamed method")
        raise ConfigError(
            f"{fields.where}: the weights are quantised ({method}); give a checkpoint in float32 "
            "or bfloat16, which --weight-format int8 rounds to 8 bits at load"
        )
    return family_of(fields).read(fields, folder, DTypes(dtype, ssm_dtype))
