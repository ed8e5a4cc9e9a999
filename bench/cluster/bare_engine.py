"""The limits for serving on this machine: one bare engine in this process, or several in others."""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

import torch

from baton.bench.cluster.load import Load
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig

DEADLINE_S = 600.0
Prompts = Sequence[Sequence[int]]


class BareEngine:
    """An engine that is given requests by calls."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine.load(replace(config, workers_on_host=1))

    def measure(
        self, load: Load, prompts: Sequence[Sequence[int]], threads: int
    ) -> dict[str, float]:
        """Return tokens a second over all prompts at once, on `threads` cores."""
        torch.set_num_threads(threads)
        sampling = SamplingParams(temperature=0, max_tokens=load.output_len, ignore_eos=True)
        began = time.perf_counter()
        outputs = self._engine.generate(prompts, sampling)
        seconds = time.perf_counter() - began
        read = load.input_len * len(prompts)
        written = sum(len(output.token_ids) for output in outputs)
        return {
            f"bare_{threads}_threads_output_tok_s": written / seconds,
            f"bare_{threads}_threads_total_tok_s": (read + written) / seconds,
        }


class BareProcess:
    """An engine in a process of its own that generates on request."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, load: Load, prompts: Prompts) -> None:
        self._connection.send((load, prompts))

    def tokens(self) -> int:
        """Wait for the end and return the number of output tokens. Raises TimeoutError."""
        if not self._connection.poll(DEADLINE_S):
            raise TimeoutError(f"a bare engine did not end within {DEADLINE_S:g} s")
        count: int = self._connection.recv()
        return count


@contextmanager
def bare_processes(config: EngineConfig, count: int) -> Iterator[list[BareProcess]]:
    """Start `count` processes with loaded engines, and end them after the context."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, config), daemon=True)
            process.start()
            stack.callback(process.join, DEADLINE_S)
            stack.callback(ours.close)
            theirs.close()
            processes.append(BareProcess(ours))
        for each in processes:
            each.begin(Load(1, 1, 4, 2), [[5, 6, 7, 8]])
        for each in processes:
            each.tokens()
        yield processes


def output_rate(processes: Sequence[BareProcess], load: Load, prompts: Sequence[Prompts]) -> float:
    """Return the output tokens a second of all processes together.

    Each process runs `load` with one entry of `prompts`.
    """
    began = time.perf_counter()
    for process, own in zip(processes, prompts, strict=True):
        process.begin(load, own)
    written = sum(process.tokens() for process in processes)
    return written / (time.perf_counter() - began)


def _serve(connection: Connection, config: EngineConfig) -> None:
    engine = BareEngine(config)
    while True:
        try:
            load, prompts = connection.recv()
        except EOFError:
            return
        engine.measure(load, prompts, threads=1)
        connection.send(load.output_len * len(prompts))
