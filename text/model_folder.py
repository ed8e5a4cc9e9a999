"""Reading the JSON files of a Hugging Face model folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.text.errors import TokenizerFileError


def read_text(path: Path) -> str:
    """The file's text; `TokenizerFileError` when it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise TokenizerFileError(f"cannot read {path}: {err}; expected a UTF-8 text file") from err


def read_json_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in the file; an empty one when there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as err:
        raise TokenizerFileError(f"{path} is not valid JSON: {err}") from err
    if not isinstance(value, dict):
        raise TokenizerFileError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value
