"""Names and JSON files of Hugging Face model folders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.text.errors import TokenizerFileError

# Folders of the hub library's cache are models--owner--name/snapshots/commit.
_CACHED_PREFIX = "models--"
ANY_NAME = "*"
"""The entry of a model's names that stands for every name."""


def model_name(folder: Path) -> str:
    """Return the name of the model in `folder`: its hub id in the hub library's cache, else the
    folder's name.
    """
    whole = folder.resolve()
    repository = whole.parent.parent.name
    if whole.parent.name == "snapshots" and repository.startswith(_CACHED_PREFIX):
        return repository.removeprefix(_CACHED_PREFIX).replace("--", "/", 1)
    return whole.name


def served_names(given: str | None, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name of a model in replies, and the others by which clients may ask for it.

    given: names with commas between, of which `ANY_NAME` stands for every name; None: the folder's.
    """
    default = model_name(folder)
    names = [name.strip() for name in (given or default).split(",")]
    main = next((name for name in names if name != ANY_NAME), default)
    return main, tuple(name for name in names if name != main)


def read_text(path: Path) -> str:
    """Return the file's text. Raises TokenizerFileError if it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise TokenizerFileError(f"cannot read {path}: {err}; expected a UTF-8 text file") from err


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Return the JSON object in the file, or an empty one if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as err:
        raise TokenizerFileError(f"{path} is not valid JSON: {err}") from err
    if not isinstance(value, dict):
        raise TokenizerFileError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value
