"""The options that name the model and what it is computed with."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import ConfigError
from baton.core.options import FolderOrName, Group, Words, option
from baton.deploy.errors import StartError
from baton.deploy.files.example_model import EXAMPLE_MODEL
from baton.deploy.options.drafts import DraftOptions
from baton.deploy.options.host_cache import HostCacheOptions
from baton.engine.loading.hub import find_model
from baton.engine.settings.choices import AUTO_DEVICE
from baton.engine.settings.options import EngineOptions
from baton.text.model_folder import read_json_object

AUTO_DTYPE = "auto"
DTYPES = ("float32", "bfloat16", "float16")


def _same(*names: str) -> Words:
    return Words({name: name for name in names})


# fmt: off
@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The name of a model."""

    model: str | None = option(
        None, Group.MODEL,
        "A Hugging Face model folder, or the id of a model on its hub; a small example model when "
        "left out.", FolderOrName())
    revision: str | None = option(
        None, Group.MODEL, "Branch, tag or commit of a model on the hub.")
    offline: bool = option(
        False, Group.MODEL, "Take a hub model only from this machine's cache.")


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """The device and the types that a model is computed with, before what `auto` stands for."""

    device: str = option(
        AUTO_DEVICE, Group.WORKERS,
        "Device of every worker: cpu, cuda, of `baton worker` cuda:N too, or auto, which takes "
        "this machine's GPUs where workers can use them.")
    dtype: str = option(
        AUTO_DTYPE, Group.MODEL,
        "Type of weights, activations and KV; auto takes the checkpoint's.",
        _same(AUTO_DTYPE, *DTYPES))
    mamba_ssm_dtype: str = option(
        "float32", Group.MODEL, "Type of the SSM states in the pool.",
        _same("float32", "bfloat16"))
# fmt: on


@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """All options of one engine."""

    model: ModelOptions
    compute: ComputeOptions
    engine: EngineOptions
    drafts: DraftOptions
    host_cache: HostCacheOptions


def folder_of(options: ModelOptions) -> Path:
    """Return the model's folder; downloads a model of the hub that is not here yet.

    Without --model it is the example model's folder. Raises StartError.
    """
    model = str(EXAMPLE_MODEL) if options.model is None else options.model
    try:
        return find_model(model, options.revision, options.offline)
    except ConfigError as err:
        raise StartError(f"--model {model}: {err}") from err


def dtype_of(dtype: str, folder: Path) -> str:
    """Return the value of --dtype; for auto, what config.json of the checkpoint names.

    float32 where it names none, as transformers does. Raises StartError.
    """
    if dtype != AUTO_DTYPE:
        return dtype
    try:
        config = read_json_object(folder / "config.json")
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err
    text = config.get("text_config")
    for part in (config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):  # transformers 5 writes the first
            if part.get(key) is not None:
                return _known_dtype(part[key], folder)
    return "float32"


def _known_dtype(name: object, folder: Path) -> str:
    plain = str(name).removeprefix("torch.")
    if plain not in DTYPES:
        raise StartError(
            f"--dtype auto: {folder / 'config.json'} names {name!r}; give one of "
            f"{', '.join(DTYPES)}"
        )
    return plain
