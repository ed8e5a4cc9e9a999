"""Work of the engine's own thread in a decode step, without a model."""

import gc
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from baton.bench.contract import percentile
from baton.core.errors import InvariantError
from baton.core.sampling_params import SamplingParams
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.engine import Engine
from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.forward_stream import Pending
from baton.engine.forward.recurrent_index import NO_INDEX, RecurrentIndex
from baton.engine.memory.layout import AttentionShape, RecurrentShape
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.output.events import TokenSampled
from baton.engine.schedule.request import RequestSpec
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.torch_kernels import TORCH

P = TypeVar("P")
T = TypeVar("T")

STEPS = 256  # a measurement: each row reaches the decode grid once
GRID = 256
PAGE = 64
PROMPT = 2048  # tokens, at most
VOCAB = 128


class NullModel:
    """A model that returns zero logits at once; its pools have one small layer of each kind."""

    weight_bytes = 0
    kernels = TORCH
    needs_cpu_seq_lens = False

    def __init__(self) -> None:
        self.config = ModelConfig(
            family="null",
            folder=Path(),
            vocab_size=VOCAB,
            hidden_size=1,
            max_model_len=2 * PROMPT,
            layers=(),
            recurrent=(RecurrentShape(conv=(1, 3), ssm=(1, 1, 1)),),
            attention=(AttentionShape(kv_heads=1, head_dim=1),),
            mamba_chunk_size=GRID,
            eos_token_ids=(),
            dtype=torch.float32,
            conv_dtype=torch.float32,
            ssm_dtype=torch.float32,
            raw={},
        )

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        return NO_INDEX

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Return zero logits [L, vocab] float32."""
        return torch.zeros(len(batch.logit_tokens), VOCAB)


class TimedStream:
    """A stream that runs work in the caller and sums its CPU and wall seconds."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        cpu, wall = time.thread_time(), time.perf_counter()
        done: Future[T] = Future()
        done.set_result(work())
        self.cpu += time.thread_time() - cpu
        self.wall += time.perf_counter() - wall
        return done

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        return self.submit(lambda: work(prepare()))

    def mark(self, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        """Do nothing: no work is ever pending."""


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds a step.

    schedule: CPU time of the engine's thread for plan, launch, collect, process. wall_p50,
    wall_p99: the same work by the wall clock. pack: CPU time of a step without its model: packing,
    the copy, greedy sampling.
    """

    schedule: float
    wall_p50: float
    wall_p99: float
    pack: float


def measure(running: int, rng: random.Random) -> StepTimes:
    """Run STEPS steps of `running` decoding requests in overlap's order.

    Pages grow, and snapshots are tracked and donated on the way.
    """
    stream = TimedStream()
    engine = _decoding(running, rng, stream)
    walls: list[float] = []
    gc.collect()
    gc.freeze()  # as workers do once they are up
    packing, cpu = stream.cpu, time.thread_time()
    for _ in range(STEPS):
        inside, wall = stream.wall, time.perf_counter()
        engine.step()
        walls.append((time.perf_counter() - wall - (stream.wall - inside)) * 1e3)
    cpu, packing = time.thread_time() - cpu, stream.cpu - packing
    gc.unfreeze()
    if engine.status().running != running or engine.audit():
        raise InvariantError(f"{running} requests were to decode: {engine.status()}")
    return StepTimes(
        schedule=(cpu - packing) / STEPS * 1e3,
        wall_p50=percentile(walls, 0.5),
        wall_p99=percentile(walls, 0.99),
        pack=packing / STEPS * 1e3,
    )


def _decoding(running: int, rng: random.Random, stream: TimedStream) -> Engine:
    """Make an engine with all prompts computed, in cached prefixes of random lengths."""
    config = EngineConfig(
        model=Path(),
        page_size=PAGE,
        max_running=running,
        chunked_prefill_size=8192,
        memory_bytes=1 << 40,
        cached_snapshots=2 * running,
    )
    engine = Engine(config, NullModel(), None, stream)
    sampling = SamplingParams(temperature=0.0, max_tokens=PROMPT, ignore_eos=True)
    for number in range(running):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, PROMPT)))
        engine.submit(RequestSpec(f"r{number}", prompt, sampling))
    first = 0
    while first < running:
        first += sum(isinstance(event, TokenSampled) and not event.index for event in engine.step())
    for _ in range(8):
        engine.step()
    return engine
