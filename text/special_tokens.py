"""The special tokens that a model folder names, and the ids that end an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.text.errors import TokenizerFileError
from baton.text.model_folder import read_json_object

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class SpecialTokens:
    """Special tokens of one folder, as `read_special_tokens` found them."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    """`bos_token` and its like -> the token's text, as chat templates refer to them."""
    configured_stop_ids: frozenset[int] = frozenset()
    """eos ids of generation_config.json and config.json together, which end an answer."""


def read_special_tokens(folder: Path) -> SpecialTokens:
    """Read tokenizer_config.json, special_tokens_map.json and the two model configs."""
    texts: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        config = read_json_object(folder / file)
        for name in NAMES:
            text = _token_text(config.get(name), folder / file, name)
            if text is not None:
                texts[name] = text
    ids = frozenset[int]()
    for file in ("generation_config.json", "config.json"):
        config = read_json_object(folder / file)
        text = config.get("text_config")  # of a model that sees images
        for each in (config, text if isinstance(text, dict) else {}):
            ids |= _eos_ids(each, folder / file)
    return SpecialTokens(texts, ids)


def _token_text(value: Any, path: Path, name: str) -> str | None:
    """Return a token's text, from the text itself or from an AddedToken object's `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise TokenizerFileError(f"{path}: {name} is {value!r}; expected a string or an added token")


def _eos_ids(config: Mapping[str, Any], path: Path) -> frozenset[int]:
    value = config.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(i) is int and i >= 0 for i in ids):
        raise TokenizerFileError(f"{path}: eos_token_id is {value!r}; expected an id or a list")
    return frozenset(ids)
