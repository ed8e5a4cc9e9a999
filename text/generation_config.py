"""The sampling values that a checkpoint's authors recommend, in generation_config.json."""

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from baton.core.errors import RequestError
from baton.core.sampling_params import SamplingParams
from baton.text.errors import TokenizerFileError
from baton.text.model_folder import read_json_object

_NAMES = tuple(each.name for each in fields(SamplingParams) if each.metadata.get("recommended"))
"""Those that vLLM and SGLang read. `do_sample` is not among them, nor are limits of lengths."""


class SamplingDefaults(StrEnum):
    """The source of the sampling values that a request leaves out."""

    MODEL = "model"
    NONE = "none"  # those of SamplingParams


def read_sampling_defaults(folder: Path, source: SamplingDefaults) -> Mapping[str, float | int]:
    """Return the model's values by their names in SamplingParams. Raises TokenizerFileError for
    one that no request could have."""
    if source is SamplingDefaults.NONE:
        return {}
    path = folder / "generation_config.json"
    config = read_json_object(path)
    found: dict[str, Any] = {name: config[name] for name in _NAMES if config.get(name) is not None}
    for name, value in found.items():
        try:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise RequestError("no number", name)
            alone: dict[str, Any] = {name: value}
            SamplingParams(**alone)
        except RequestError as error:
            raise TokenizerFileError(
                f"{path}: {name} is {value!r}: {error}; correct it, or start with "
                "--sampling-defaults none"
            ) from error
    return found
