"""The start of an engine, between loading a model and its first request."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from baton.engine.assembly.leading_model import LeadingModel
from baton.engine.forward.runner import STEP_DEADLINE_S
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.sizing.memory_use import compared, memory_use
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.plan_text import described
from baton.engine.step.forward_batch import Window
from baton.engine.step.model import Model
from baton.engine.stream.forward_stream import ForwardStream


def started(
    model: Model,
    stream: ForwardStream,
    plan: MemoryPlan,
    states: StatePool,
    pages: PagePool,
    block_tables: Tensor,
    windows: Sequence[Window],
) -> dict[str, str]:
    """Capture the model's decode steps, where it replays any.

    Return the plan in words, on a GPU with what is used of it.
    """
    if isinstance(model, GraphedModel | LeadingModel):
        capture = partial(model.capture, states, pages, block_tables, windows)
        stream.submit(capture).result(STEP_DEADLINE_S)
    use = memory_use(states.storage.device)
    return described(plan) | ({} if use is None else compared(plan, use))
