"""Work of the engine's own thread in a decode step, without a model."""

import gc
import random
import time
from dataclasses import dataclass
from pathlib import Path

from baton.bench.contract import percentile
from baton.bench.state_ops.null_model import NullModel, TimedStream
from baton.core.errors import InvariantError
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.events import TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig

STEPS = 256  # a measurement: each row reaches the decode grid once
PAGE = 64
PROMPT = 2048  # tokens, at most
VOCAB = 128


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
    engine = Engine(config, NullModel(VOCAB, 2 * PROMPT), None, stream)
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
