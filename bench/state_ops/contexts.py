"""Host work of a decode step by the length of its rows' contexts, without a model."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from baton.bench.state_ops.null_model import NullModel, TimedStream
from baton.core.errors import InvariantError
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig

STEPS = 256  # a measurement: each row reaches the decode grid once
WARM = 8
TURN = 16  # steps of one length before the next has its turn
LENGTHS = (128, 8192, 32768, 131072)
VOCAB = 128


def step_host_ms(running: int, lengths: Sequence[int], penalised: bool) -> dict[int, float]:
    """Return, for each length, milliseconds of CPU time of a step of `running` rows of so many
    tokens, from plan to process, with packing and sampling. Lengths take turns, so that what else
    the machine does falls on all of them.

    penalised: the rows have penalties, and almost all of their tokens are output.
    """
    engines = {length: _adopted(running, length, penalised) for length in lengths}
    for engine in engines.values():
        for _ in range(WARM):
            engine.step()
    gc.collect()
    gc.freeze()  # as workers do once they are up
    seconds = dict.fromkeys(lengths, 0.0)
    for first in range(0, STEPS, TURN):
        for length, engine in engines.items():
            began = time.thread_time()
            for _ in range(first, min(first + TURN, STEPS)):
                engine.step()
            seconds[length] += time.thread_time() - began
    gc.unfreeze()
    for engine in engines.values():
        if engine.status().running != running or engine.audit():
            raise InvariantError(f"{running} requests were to decode: {engine.status()}")
    return {length: spent / STEPS * 1e3 for length, spent in seconds.items()}


def _adopted(running: int, length: int, penalised: bool) -> Engine:
    """Make an engine that has adopted requests of `length` tokens, no two of which begin alike."""
    config = EngineConfig(
        model=Path(),
        max_running=running,
        tickets=1,
        memory_bytes=1 << 40,
        cached_snapshots=2 * running,
    )
    model = NullModel(VOCAB, max_model_len=length + 2 * (WARM + STEPS))
    engine = Engine(config, model, None, TimedStream())
    sampling = SamplingParams(temperature=0.0, max_tokens=2**30, ignore_eos=True)
    if penalised:
        sampling = replace(sampling, presence_penalty=0.5, repetition_penalty=1.2)
    rest = tuple(token % VOCAB for token in range(length))
    for number in range(running):
        tokens = (number % VOCAB, number // VOCAB, *rest)
        prompt, output = (tokens[:2], tokens[2:]) if penalised else (tokens[:-1], tokens[-1:])
        name = f"r{number}"
        reservation = engine.reserve(name, len(prompt) + len(output) - 1)
        if reservation is None:
            raise InvariantError(f"no room for request {number} of {running}")
        engine.adopt(RequestSpec(name, prompt, sampling, output_ids=output), reservation)
    return engine
