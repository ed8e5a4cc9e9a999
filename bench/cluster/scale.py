"""`baton bench scale`: one decode rank and several, compared with as many bare engines."""

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster import load
from baton.bench.cluster.bare_process import BareProcess, bare_processes, output_rate
from baton.bench.cluster.load import Load
from baton.bench.contract import (
    Report,
    json_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.preflight import check_model
from baton.engine.config import EngineConfig
from baton.engine.models.family_table import read_config


@click.command("scale")
@click.option("--model", type=click.Path(path_type=Path), default=None,
              help="A Hugging Face model folder; the small Granite of random weights when left "
              "out.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=8, show_default=True,
              help="Concurrent requests on each rank.")  # fmt: skip
@click.option("--input-len", type=click.IntRange(1), default=32, show_default=True)
@click.option("--output-len", type=click.IntRange(2), default=1024, show_default=True)
@repeats_option
@seed_option
@json_option
def scale(
    model: Path | None,
    ranks: int,
    requests: int,
    input_len: int,
    output_len: int,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure output tokens a second of one decode rank and of several, with one thread each.

    efficiency_N: the speed-up from 1 to N ranks, divided by the speed-up from 1 to N bare engine
    processes on the same machine while the cluster is up and idle.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    shape = Load(requests, requests, input_len, output_len)
    with _folder(model) as folder:
        engine = EngineConfig(folder, max_running=requests, threads=1, memory_bytes=1 << 30)
        check_model(engine)
        rounds = _Rounds(engine, ranks, shape, random.Random(seed)).measured(repeats)
    names = (f"tok_s_{ranks}", "tok_s_1", f"efficiency_{ranks}")
    numbers = summarise(rounds)
    ours = {k: v for k, v in numbers.items() if k.removesuffix("_spread") in names}
    limits = {k: v for k, v in numbers.items() if k not in ours}
    settings = {
        "model": "granite_small" if model is None else str(model),
        "requests_a_rank": requests,
        "input_len": input_len,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    show(Report("scale", settings, {"ranks": ranks} | ours, limits), json_wanted)


@contextmanager
def _folder(model: Path | None) -> Iterator[Path]:
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_checkpoint(Path(folder) / "granite_small", GRANITE_SMALL)


@dataclass(frozen=True)
class _Rounds:
    """Results of one rank, all ranks, one bare engine and all bare engines, measured in turn."""

    engine: EngineConfig
    ranks: int
    shape: Load
    rng: random.Random

    def measured(self, repeats: int) -> list[dict[str, float]]:
        config = ClusterConfig(self.engine, decode_dp=self.ranks, threads=1)
        with Cluster(config) as cluster, bare_processes(self.engine, self.ranks) as bare:
            self._served(cluster.address, 1)
            self._served(cluster.address, self.ranks)
            return [self._round(cluster, bare) for _ in range(repeats)]

    def _round(self, cluster: Cluster, bare: list[BareProcess]) -> dict[str, float]:
        cluster.router.flush_cache()
        one, all_ = self._served(cluster.address, 1), self._served(cluster.address, self.ranks)
        bare_one, bare_all = self._bare(bare[:1]), self._bare(bare)
        return {
            "tok_s_1": one,
            f"tok_s_{self.ranks}": all_,
            "bare_tok_s_1": bare_one,
            f"bare_tok_s_{self.ranks}": bare_all,
            f"efficiency_{self.ranks}": (all_ / one) / (bare_all / bare_one),
        }

    def _served(self, server: RouterAddress, ranks: int) -> float:
        """Measure the cluster, with an equal share of the requests pinned to each rank."""
        prompts = [prompt for _ in range(ranks) for prompt in self._prompts()]
        pinned = [{"routed_dp_rank": i // self.shape.requests} for i in range(len(prompts))]
        wanted = Load(len(prompts), len(prompts), self.shape.input_len, self.shape.output_len)
        answers = load.play(server, wanted, prompts, more=pinned)
        return load.measure(wanted, answers)["output_tok_s"]

    def _bare(self, processes: list[BareProcess]) -> float:
        return output_rate(processes, self.shape, [self._prompts() for _ in processes])

    def _prompts(self) -> list[list[int]]:
        model = read_config(self.engine.model, self.engine.dtype, self.engine.ssm_dtype)
        return self.shape.draw(self.rng, model.vocab_size)
