"""The start of an engine, between loading a model and its first request."""

import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.forward.runner import STEP_DEADLINE_S, ModelRunner
from baton.engine.forward.warm_up import WarmUp
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.sizing.memory_use import compared, memory_use
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.plan_text import described
from baton.engine.step.forward_batch import Window
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import ForwardStream

log = logging.getLogger(__name__)

_PINNED = tuple(1 << power for power in range(3, 21))
"""Bytes of pinned blocks, as torch rounds them: from one result to a large step's plan."""
_SMALL, _MANY, _FEW = 1 << 16, 24, 4
"""Results of a step are up to seven small blocks, and those of three steps may be held at once."""


def started(
    model: Model,
    runner: ModelRunner,
    stream: ForwardStream,
    plan: MemoryPlan,
    states: StatePool,
    pages: PagePool,
    block_tables: Tensor,
    windows: Sequence[Window],
) -> dict[str, str]:
    """Capture the model's decode steps, where it replays any, and compute steps of every shape
    where the first of a shape takes longer than the others.

    Return the plan in words, on a GPU with what is used of it.
    """
    began = perf_counter()
    if isinstance(model, GraphedModel | LeadingModel):
        capture = partial(model.capture, states, pages, block_tables, windows)
        stream.submit(capture).result(STEP_DEADLINE_S)
    device = states.storage.device
    if device.type == "cuda":
        _keep_pinned()
    if device.type == "cuda" or model.kernels.compilations is not None:
        steps = runner.warm_up(WarmUp.of(plan).batches())
        seconds, compiled = perf_counter() - began, model.kernels.compilations or 0
        log.info("ready after %d steps, %d kernels, %.1f s", steps, compiled, seconds)
    use = memory_use(device)
    return described(plan) | ({} if use is None else compared(plan, use))


def _keep_pinned() -> None:
    """Let torch pin what steps will copy through, 11 MiB, and keep it: CUDA takes long to pin."""
    _ = [
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
        for size in _PINNED
        for _ in range(_MANY if size <= _SMALL else _FEW)
    ]
