"""Facts about the served model, read from its folder."""

import time
from pathlib import Path

from baton.api.backend import ModelInfo
from baton.text.generation_config import SamplingDefaults, read_sampling_defaults
from baton.text.model_folder import read_json_object
from baton.text.tokenizer import Tokenizer

UNBOUNDED = 2**31 - 1
"""The context of a model whose config.json names none, until a worker reports its limit."""


def read_model_info(
    folder: Path,
    model_id: str,
    tokenizer: Tokenizer,
    other_names: tuple[str, ...] = (),
    defaults: SamplingDefaults = SamplingDefaults.MODEL,
) -> ModelInfo:
    """Read config.json and generation_config.json. Raises `TokenizerFileError` if it cannot.

    The vocabulary size is that of the embedding, which may have more rows than the tokenizer has
    tokens: all of them are legal in a prompt.
    """
    config = read_json_object(folder / "config.json")
    return ModelInfo(
        model_id=model_id,
        max_model_len=int(config.get("max_position_embeddings", UNBOUNDED)),
        vocab_size=int(config.get("vocab_size", tokenizer.vocab_size)),
        created=int(time.time()),
        root=str(folder),
        other_names=other_names,
        sampling_defaults=read_sampling_defaults(folder, defaults),
    )
