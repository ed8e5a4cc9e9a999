"""`baton bench scale`: one decode rank and several, compared with as many bare engines."""

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from baton.bench.checkpoints import GRANITE_SMALL, write_checkpoint
from baton.bench.cluster import load
from baton.bench.cluster.bare_engine import BareProcess, bare_processes, output_rate
from baton.bench.cluster.cpu import CLIENT, RANK, REST, ROUTER, ClusterCpu
from baton.bench.cluster.load import Load
from baton.bench.contract import (
    Report,
    json_option,
    numbers_option,
    repeats_option,
    seed_option,
    show,
    summarise,
)
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.preflight import check_model
from baton.engine.models.family_table import configured_model
from baton.engine.settings.config import EngineConfig

MEMORY = 1 << 29
"""Bytes of each engine."""
CLIENT_GAP_S = 0.005
"""Seconds from one look of the client at its sockets to the next. A step takes about as long."""


@click.command("scale")
@click.option("--model", type=click.Path(path_type=Path), default=None,
              help="A Hugging Face model folder; the small Granite of random weights when left "
              "out.")  # fmt: skip
@click.option("--ranks", default="1,2,4", show_default=True,
              help="Numbers of ranks; one is always measured.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), default=8, show_default=True,
              help="Concurrent requests on each rank.")  # fmt: skip
@click.option("--input-len", type=click.IntRange(1), default=32, show_default=True)
@click.option("--output-len", type=click.IntRange(2), default=1024, show_default=True)
@repeats_option
@seed_option
@json_option
def scale(
    model: Path | None,
    ranks: str,
    requests: int,
    input_len: int,
    output_len: int,
    repeats: int,
    seed: int | None,
    json_wanted: bool,
) -> None:
    """Measure output tokens a second of one decode rank and of several, with one thread each.

    efficiency_N: the speed-up from 1 to N ranks, divided by the speed-up from 1 to N bare engine
    processes on the same machine while the cluster is up and idle. router_us_token_N and the like:
    the CPU time a token of the router, the ranks, this client, and the rest (prefill, Ray).
    bare_us_token_N: of the bare engines.
    """
    seed = random.randrange(2**31) if seed is None else seed
    click.echo(f"seed {seed}")
    counts = numbers_option(ranks, "--ranks", more=(1,))
    shape = Load(requests, requests, input_len, output_len)
    with _folder(model) as folder:
        engine = EngineConfig(folder, max_running=requests, threads=1, memory_bytes=MEMORY)
        check_model(engine)
        rounds = _Rounds(engine, counts, shape, random.Random(seed)).measured(repeats)
    numbers = summarise(rounds)
    limits = {k: v for k, v in numbers.items() if k.startswith("bare_")}
    ours = {k: v for k, v in numbers.items() if k not in limits}
    settings = {
        "model": "granite_small" if model is None else str(model),
        "requests_a_rank": requests,
        "input_len": input_len,
        "output_len": output_len,
        "repeats": repeats,
        "seed": seed,
    }
    show(Report("scale", settings, {"ranks": counts[-1]} | ours, limits), json_wanted)


@contextmanager
def _folder(model: Path | None) -> Iterator[Path]:
    if model is not None:
        yield model
        return
    with tempfile.TemporaryDirectory() as folder:
        yield write_checkpoint(Path(folder) / "granite_small", GRANITE_SMALL)


@dataclass(frozen=True)
class _Rounds:
    """Results of each number of ranks, and of as many bare engines, measured in turn."""

    engine: EngineConfig
    counts: Sequence[int]
    shape: Load
    rng: random.Random

    def measured(self, repeats: int) -> list[dict[str, float]]:
        most = self.counts[-1]
        config = ClusterConfig(self.engine, decode_dp=most, threads=1)
        with Cluster(config) as cluster, bare_processes(self.engine, most) as bare:
            for count in (1, most):
                self._served(cluster.address, count)
            return [self._round(cluster, bare) for _ in range(repeats)]

    def _round(self, cluster: Cluster, bare: list[BareProcess]) -> dict[str, float]:
        found: dict[str, float] = {}
        for count in self.counts:
            cluster.router.flush_cache()
            cpu = ClusterCpu(cluster)
            before = cpu.seconds()
            read: list[Counter[str]] = []
            noted = partial(_note, cpu, read)
            found[f"tok_s_{count}"] = self._served(cluster.address, count, noted)
            (spent,) = read
            between = cpu.seconds()
            found[f"bare_tok_s_{count}"] = self._bare(bare[:count])
            after = cpu.seconds()
            us = 1e6 / (count * self.shape.requests * self.shape.output_len)
            for part in (ROUTER, RANK, CLIENT, REST):
                found[f"{part}_us_token_{count}"] = (spent[part] - before[part]) * us
            found[f"bare_us_token_{count}"] = (after[REST] - between[REST]) * us
        for count in self.counts[1:]:
            ours = found[f"tok_s_{count}"] / found["tok_s_1"]
            theirs = found[f"bare_tok_s_{count}"] / found["bare_tok_s_1"]
            found[f"efficiency_{count}"] = ours / theirs
        return found

    def _served(
        self, server: RouterAddress, ranks: int, read: Callable[[], None] = lambda: None
    ) -> float:
        """Measure the cluster, with an equal share of the requests pinned to each rank.

        read: called when the replies are read, before this client parses them.
        """
        prompts = [prompt for _ in range(ranks) for prompt in self._prompts()]
        pinned = [{"routed_dp_rank": i // self.shape.requests} for i in range(len(prompts))]
        wanted = Load(len(prompts), len(prompts), self.shape.input_len, self.shape.output_len)
        answers = load.play(server, wanted, prompts, more=pinned, gap_s=CLIENT_GAP_S, read=read)
        return load.measure(wanted, answers)["output_tok_s"]

    def _bare(self, processes: list[BareProcess]) -> float:
        return output_rate(processes, self.shape, [self._prompts() for _ in processes])

    def _prompts(self) -> list[list[int]]:
        model = configured_model(self.engine)
        return self.shape.draw(self.rng, model.vocab_size)


def _note(cpu: ClusterCpu, seconds: list[Counter[str]]) -> None:
    seconds.append(cpu.seconds())
