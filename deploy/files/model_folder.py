"""The check of a model's folder before anything starts."""

from pathlib import Path

from baton.core.errors import ConfigError
from baton.deploy.errors import StartError
from baton.text.model_folder import read_json_object


def check_folder(folder: Path) -> None:
    """Check that a model's folder has its config and its tokenizer. Raises StartError."""
    if not folder.is_dir():
        raise StartError(
            f"--model {folder}: no such folder; expected one with config.json, *.safetensors and "
            "tokenizer.json, or the id (owner/name) of a model on the Hugging Face hub"
        )
    try:
        if not read_json_object(folder / "config.json"):
            raise ConfigError(
                f"there is no config.json in this folder, or it is empty{_below(folder)}"
            )
        if not (folder / "tokenizer.json").is_file():
            raise ConfigError("there is no tokenizer.json in this folder")
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err


def _below(folder: Path) -> str:
    """Name the folders in `folder` that have a config.json, at most three, or return ""."""
    found = [str(path.parent) for path in sorted(folder.glob("*/config.json"))[:3]]
    if not found:
        return ""
    return f"; {' and '.join(found)} {'has' if len(found) == 1 else 'have'} one"
