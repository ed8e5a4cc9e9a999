"""Typed reading of a `config.json`, with errors that name the file and the field."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError

CONFIG_FILE = "config.json"


class Fields:
    """The fields of one JSON object; null counts as absent."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw = raw
        self.where = where

    def require(self, *names: str) -> None:
        """Check that all of `names` are there. Raises ConfigError that names those that are not."""
        absent = [name for name in names if self.raw.get(name) is None]
        if absent:
            raise ConfigError(f"{self.where} lacks {', '.join(absent)}, which the model needs")

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(name, value, f"an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._get(name, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return tuple(value)

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Return a list of integers; one integer alone counts as a list of one."""
        value = self._get(name, default)
        items = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self._wrong(name, value, "an integer or a list of integers")
        return tuple(items)

    def section(self, name: str) -> "Fields":
        """Return a nested object; an empty one where it is absent."""
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, value, "an object")
        return Fields(value, f"{self.where} ({name})")

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def only(self, name: str, allowed: Any, why: str) -> None:
        """Check that `name`, where it is given, has the one value that is supported."""
        value = self.raw.get(name)
        if value is not None and value != allowed:
            raise ConfigError(f"{self.where}: {name} is {value!r}; only {allowed!r} works: {why}")

    def _get(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is not None:
            return value
        if default is None:
            self.require(name)
        return default

    def _wrong(self, name: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self.where}: {name} should be {expected}; got {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a JSON {type(value).__name__}; expected an object")
    return value


def read_fields(folder: Path) -> Fields:
    """Read the fields of the model folder's config.json."""
    if not folder.is_dir():
        raise ConfigError(
            f"there is no model folder {folder}; give a folder that holds {CONFIG_FILE}, "
            "*.safetensors and tokenizer.json"
        )
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} is not a model folder: it has no {CONFIG_FILE}")
    return Fields(read_json(path), str(path))
