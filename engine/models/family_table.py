"""The one table of model families, and reading a model folder's configuration by it.

To add a family: one file in `families` that composes `layers/` and ends in a `FAMILY`, and its
line in the table.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from baton.core.errors import ConfigError
from baton.engine.models.families import (
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
from baton.engine.models.family import DTypes, Family, has_mtp, with_mtp
from baton.engine.models.fields import Fields, read_fields
from baton.engine.models.quantised import check_method, read_quantisation
from baton.engine.settings.config import EngineConfig, ModelConfig

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
    """Return the family that config.json names by `model_type`; by `architectures` without one.

    Raises ConfigError where the model_type is not supported, or where the two do not agree: a
    model of one family read by another's rules may load, and answer nonsense.
    """
    model_type = fields.raw.get("model_type")
    architectures = fields.texts("architectures") if fields.has("architectures") else ()
    named = _first(lambda family: model_type in (family.model_type, *family.aliases))
    built = _first(lambda family: not set(architectures).isdisjoint(family.architectures))
    if built is not None and model_type is None:
        return built
    if built is not None and named is not built:
        raise ConfigError(
            f"{fields.where}: model_type {model_type!r} does not agree with architectures "
            f"{list(architectures)}: {_right(named, built)}"
        )
    if named is None:
        raise ConfigError(
            f"{fields.where}: model_type {model_type!r} is not supported; "
            f"supported are {', '.join(sorted(FAMILIES))}"
        )
    if architectures and built is None:
        raise ConfigError(
            f"{fields.where}: architectures {list(architectures)} are not supported; a model of "
            f"model_type {model_type!r} should name {' or '.join(named.architectures)}"
        )
    return named


def _first(fits: Callable[[Family], bool]) -> Family | None:
    return next((family for family in FAMILIES.values() if fits(family)), None)


def _right(named: Family | None, built: Family) -> str:
    """Say what config.json should hold where its model_type and architectures disagree."""
    right = f"{' or '.join(built.architectures)} goes with model_type {built.model_type!r}"
    if named is None:
        return right
    return f"{right}, and model_type {named.model_type!r} with {' or '.join(named.architectures)}"


def configured_model(config: EngineConfig) -> ModelConfig:
    """Read the configuration of the model that an engine of these options runs. Raises
    ConfigError.
    """
    dtypes = config.dtype, config.ssm_dtype, config.conv_dtype
    model = read_config(config.model, *dtypes, mtp=config.mtp)
    check_method(config.quantization, model.quantisation, config.model)
    return replace(model, mtp_recycle=config.mtp_recycle or model.mtp_recycle)


def read_config(
    folder: Path,
    dtype: torch.dtype,
    ssm_dtype: torch.dtype,
    conv_dtype: torch.dtype | None = None,
    mtp: bool | None = False,
) -> ModelConfig:
    """Read the configuration in a Hugging Face model folder.

    dtype: of weights, activations and KV; ssm_dtype, conv_dtype: of the states in the pool. None:
    `dtype`
    mtp: its layer of multi-token prediction is to be run; None: if the files have one. Raises
    ConfigError where there is none.
    """
    fields = read_fields(folder)
    quantisation = read_quantisation(fields, folder)
    dtypes = DTypes(dtype, conv_dtype or dtype, ssm_dtype)
    family = family_of(fields)
    config = family.read(fields, folder, dtypes)
    if mtp or (mtp is None and has_mtp(config, family)):
        config = with_mtp(config, family)
    return replace(config, quantisation=quantisation)
