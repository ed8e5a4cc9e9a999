"""The status of an engine."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from baton.engine.cache.cached_pools import CachedPools, FileCounts
from baton.engine.cache.eviction_causes import Shortages
from baton.engine.layout.owners import Owner
from baton.engine.request.request import Request
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.sizing.plan import MemoryPlan


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
    decode_step_s: float  # of a step without prompts; 0: not known
    prompt_token_s: float  # by which a prompt token makes a step longer; 0: not known
    beside_decode: int  # most prompt tokens of a step in which requests decode
    # Of the host's tier, if there is one.
    host_slots: dict[Owner, int] = field(default_factory=dict)
    host_pages: dict[Owner, int] = field(default_factory=dict)
    host_saving: int = 0  # prefixes that are copied there, or wait for it
    host_loading: int = 0  # prefixes that are copied back
    files: FileCounts | None = None  # None: it keeps no prefixes in files


def engine_status(scheduler: Scheduler, pools: CachedPools, plan: MemoryPlan) -> EngineStatus:
    """Return the status of the engine that these are parts of."""
    backup = pools.backup
    host_slots, host_pages = ({}, {}) if backup is None else backup.counts()
    saving, loading = (0, 0) if backup is None else backup.copies()
    return EngineStatus(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        queued_tokens=queued_tokens(scheduler.running, scheduler.waiting),
        held=len(scheduler.held),
        slots=pools.slots.counts(),
        pages=pools.pages.counts(),
        host_slots=host_slots,
        host_pages=host_pages,
        host_saving=saving,
        host_loading=loading,
        files=backup.file_counts() if backup is not None else None,
        shortages=pools.causes.lately,
        max_running=plan.max_running,
        max_model_len=plan.max_model_len,
        decode_step_s=scheduler.speeds.decode_step_s,
        prompt_token_s=scheduler.speeds.prompt_token_s,
        beside_decode=scheduler.budget.beside_decode,
    )


def queued_tokens(running: Iterable[Request], waiting: Iterable[Request]) -> int:
    """Return the tokens to compute before all of these requests decode, cached ones among them."""
    begun = sum(
        request.target - request.lengths.computed
        for request in running
        if request.plain_place < 0 and not request.decodes
    )
    return begun + sum(request.target for request in waiting)
