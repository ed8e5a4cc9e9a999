"""What can be known to fail before anything starts: a wrong folder costs a second, not a start."""

from baton.deploy.errors import StartError
from baton.engine.config import EngineConfig
from baton.engine.errors import ConfigError
from baton.engine.models.families import FAMILIES, read_config
from baton.engine.models.loader import declared_weights
from baton.engine.weights import Checkpoint
from baton.text.errors import TextError
from baton.text.tokenizer import Tokenizer


def check_model(config: EngineConfig) -> None:
    """The folder, its configuration, its tensors' names and shapes, and its tokenizer.

    Reads headers, no weights. Raises StartError.
    """
    folder = config.model
    if not folder.is_dir():
        raise StartError(
            f"--model {folder}: no such folder; expected one with config.json, *.safetensors and "
            "tokenizer.json, as downloaded from Hugging Face"
        )
    try:
        model = read_config(folder, config.dtype, config.ssm_dtype)
        Checkpoint(folder).check(declared_weights(model).shapes, FAMILIES[model.family].ignored)
        Tokenizer.from_folder(folder)
    except (ConfigError, TextError) as err:
        raise StartError(f"--model {folder}: {err}") from err
