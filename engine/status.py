"""The status of an engine."""

from dataclasses import dataclass

from baton.engine.cache.eviction_causes import Shortages
from baton.engine.memory.owners import Owner


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot between two steps."""

    running: int  # requests that take part in steps
    waiting: int
    queued_tokens: int  # to compute before all of them decode
    held: int  # that wait for their hand-off to end
    slots: dict[Owner, int]  # the padding slot left out
    pages: dict[Owner, int]  # the padding page left out
    shortages: Shortages  # what the prefix cache evicted lately, and for which pool
    max_running: int
    max_model_len: int  # tokens, prompt and output
