"""Checks before anything starts, so that a wrong folder fails within a second."""

from baton.core.errors import ConfigError
from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig
from baton.engine.loading.weights import Checkpoint
from baton.engine.models.family_table import read_config
from baton.engine.models.loader import check_weights, planned_memory
from baton.text.tokenizer import Tokenizer


def check_model(config: EngineConfig) -> None:
    """Check a model's folder, config, tensor names and shapes, and tokenizer.

    Reads headers, not weights. Raises StartError.
    """
    folder = config.model
    if not folder.is_dir():
        raise StartError(
            f"--model {folder}: no such folder; expected one with config.json, *.safetensors and "
            "tokenizer.json, or the id (owner/name) of a model on the Hugging Face hub"
        )
    try:
        model = read_config(folder, config.dtype, config.ssm_dtype)
        check_weights(model, Checkpoint(folder))
        Tokenizer.from_folder(folder)
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err


def check_fits(worker: str, config: EngineConfig) -> int:
    """Return the bytes that this worker's memory plan takes on this machine.

    Raises StartError if they do not suffice.
    """
    try:
        return planned_memory(config).budget_bytes
    except ConfigError as err:
        raise StartError(f"{worker}: {err}") from err
