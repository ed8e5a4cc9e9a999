"""`baton models`."""

from collections import Counter
from pathlib import Path

import click
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from baton.core.errors import ConfigError
from baton.deploy.errors import StartError
from baton.engine.assembly.loader import declared_weights
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.models.family_table import FAMILIES, read_config
from baton.engine.settings.config import ModelConfig
from baton.engine.settings.quantisation import UNQUANTISED

_VERIFIED = (
    "fp32: the 64 greedy tokens of transformers, and its logits within 1e-4 at a standard "
    "deviation of one, on two or more tiny random checkpoints: whole and chunked prompts, ragged "
    "batches, cached prefixes, prefill and decode on workers of their own. bf16: dense "
    "checkpoints, at most 2e-3 nats from fp32."
)


@click.command()
@click.option("--model", type=click.Path(path_type=Path), default=None,
              help="A model folder: what it is read as, or what it lacks.")  # fmt: skip
def models(model: Path | None) -> None:
    """List the model families that can be served, and what has been verified of each."""
    console = Console(highlight=False)
    if model is not None:
        console.print(_described(model), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    for column in ("model_type", "architecture", "layers", "verified"):
        table.add_column(column, no_wrap=column != "layers")
    for name in sorted(FAMILIES):
        family = FAMILIES[name]
        table.add_row(name, family.architecture, family.layers, ", ".join(family.verified))
    console.print(table)
    console.print(_VERIFIED, style="dim")


def _described(folder: Path) -> str:
    """Describe the model in `folder` in one line, from its config.json alone. Raises StartError."""
    try:
        config = read_config(folder, torch.bfloat16, torch.float32)
        declared_weights(config)
    except ConfigError as err:
        raise StartError(f"--model {folder}: {err}") from err
    return f"{config.family}: {_layers(config)}; {_state(config)}{_weights(config)}"


def _layers(config: ModelConfig) -> str:
    counts = Counter(mixer for layer in config.layers for mixer in layer)
    mixers = ", ".join(f"{count} {mixer}" for mixer, count in counts.items())
    return f"{len(config.layers)} layers ({mixers}), up to {config.max_model_len:,} tokens"


def _weights(config: ModelConfig) -> str:
    """Describe weights that are not kept as the files have them."""
    if config.quantisation == UNQUANTISED:
        return ""
    return f"; weights by {config.quantisation.name}, which --weight-format keeps or expands"


def _state(config: ModelConfig) -> str:
    """Describe the memory that a request takes in bfloat16, with SSM states in float32. Native
    kernels keep the windows of convolutions in float32 too, which is not counted.
    """
    state = SlotLayout(config.recurrent, config.conv_dtype, config.ssm_dtype).state_bytes
    token = PageLayout(config.attention, 1, config.dtype).token_bytes
    return f"{state:,} bytes of state a request, {token:,} bytes of KV a token, in bfloat16"
