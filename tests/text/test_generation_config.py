"""The sampling values of generation_config.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.text.errors import TokenizerFileError
from baton.text.generation_config import SamplingDefaults, read_sampling_defaults

GIVEN = {"temperature": 0.01, "top_k": 1, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05}


def test_the_models_values_are_read_and_no_others(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path, SamplingDefaults.MODEL) == {}
    config = GIVEN | {"do_sample": False, "max_new_tokens": 16, "eos_token_id": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert read_sampling_defaults(tmp_path, SamplingDefaults.MODEL) == GIVEN
    assert read_sampling_defaults(tmp_path, SamplingDefaults.NONE) == {}


def test_a_null_is_no_value(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"top_k": null, "top_p": 0.5}')
    assert read_sampling_defaults(tmp_path, SamplingDefaults.MODEL) == {"top_p": 0.5}


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 2}, {"top_k": "5"}, {"min_p": True}, {"top_k": 0.5}]
)
def test_a_value_that_no_request_could_have_is_refused_at_the_start(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
    (name,) = wrong
    with pytest.raises(TokenizerFileError, match=f"{name} is .*--sampling-defaults none"):
        read_sampling_defaults(tmp_path, SamplingDefaults.MODEL)
