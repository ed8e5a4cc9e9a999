"""Command-line options that the benchmarks of one engine share."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch

from baton.bench.contract import Peer
from baton.bench.machine import cores
from baton.bench.peers.llama_cpp_peer import start
from baton.bench.peers.peers import Peers
from baton.bench.peers.transformers_peer import TransformersPeer, missing
from baton.engine.engine import Engine
from baton.engine.loading.scales import FP8
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_GGUF_KINDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "q8_0", FP8: "q8_0"}
_EIGHT_BIT = {WeightFormat.INT8: torch.int8, WeightFormat.FP8: FP8}


@dataclass(frozen=True)
class Subject:
    """The model under measurement, and the settings."""

    model: Path
    dtype: str
    weight_format: WeightFormat
    threads: int
    peers: bool
    batches: tuple[int, ...]
    prompt_len: int
    repeats: int
    seed: int
    llama_cpp: Path | None
    llama_cpp_source: Path | None

    @staticmethod
    def of(options: dict[str, Any]) -> "Subject":
        seed = random.randrange(2**31) if options["seed"] is None else options["seed"]
        click.echo(f"seed {seed}")
        return Subject(
            model=options["model"],
            dtype=options["dtype"],
            weight_format=WeightFormat(options["weight_format"]),
            threads=options["threads"] or cores(),
            peers=options["peers"],
            batches=tuple(int(batch) for batch in options["batch"].split(",")),
            prompt_len=options["prompt_len"],
            repeats=options["repeats"],
            seed=seed,
            llama_cpp=options["llama_cpp"],
            llama_cpp_source=options["llama_cpp_source"],
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def weight_dtype(self) -> torch.dtype:
        return _EIGHT_BIT.get(self.weight_format, self.torch_dtype)

    def load(self) -> Engine:
        """Load an engine without a prefix cache."""
        most = max(self.batches)
        return Engine.load(
            EngineConfig(
                model=self.model,
                dtype=self.torch_dtype,
                weight_format=self.weight_format,
                threads=self.threads,
                max_running=most,
                max_model_len=self.prompt_len + 512,
                prefix_caching=False,
            )
        )

    def load_peers(self) -> Peers:
        """Start the peers that can run here."""
        if not self.peers:
            skipped: Peer = {"skipped": "--no-peers"}
            return Peers({"llama_cpp": skipped, "transformers": skipped})
        kind = _GGUF_KINDS[self.weight_dtype]
        where = (self.llama_cpp, self.llama_cpp_source)
        return Peers(
            {
                "llama_cpp": start(*where, self.model, kind, self.threads),
                "transformers": missing() or TransformersPeer(self.model, self.torch_dtype),
            }
        )

    def settings(self) -> dict[str, object]:
        return {
            "model": str(self.model),
            "dtype": self.dtype,
            "weight_format": str(self.weight_format),
            "threads": self.threads,
            "prompt_len": self.prompt_len,
            "repeats": self.repeats,
            "seed": self.seed,
        }


def model_options(
    batches: str, prompt_len: int
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add `--model`, `--dtype` and so on, with these defaults of `--batch` and `--prompt-len`."""
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    formats = click.Choice([str(f) for f in (WeightFormat.MODEL, *_EIGHT_BIT)])
    options = (
        click.option("--model", type=folder, required=True, help="A Hugging Face model folder."),
        click.option("--dtype", type=click.Choice(list(_DTYPES)), default="bfloat16",
                     show_default=True),
        click.option("--weight-format", type=formats, default="model", show_default=True),
        click.option("--threads", type=click.IntRange(1), default=None,
                     help="Compute threads; all cores when left out."),
        click.option("--peers/--no-peers", default=True, help="Measure other engines too."),
        click.option("--llama-cpp", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                     help="A Python that has llama_cpp."),
        click.option("--llama-cpp-source", type=folder,
                     help="llama.cpp's sources, for the conversion to GGUF."),
        click.option("--batch", default=batches, show_default=True,
                     help="Batch sizes, separated by commas."),
        click.option("--prompt-len", type=click.IntRange(1), default=prompt_len,
                     show_default=True),
    )  # fmt: skip

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add
