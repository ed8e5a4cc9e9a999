"""A worker's numbers for the metric names of other servers."""

from baton.engine.layout.owners import held_by_requests, held_share, used
from baton.engine.settings.counters import Counters
from baton.engine.status import EngineStatus
from baton.rpc.metric_aliases.figures import CurrentLoad, Totals


def load_of(status: EngineStatus | None, waiting_before: int, page_size: int) -> CurrentLoad:
    """Return what the worker has now.

    status: None before the engine's first. waiting_before: requests that wait but are not in the
    engine yet. page_size: tokens.
    """
    if status is None:
        return CurrentLoad(waiting=waiting_before, page_size=page_size)
    return CurrentLoad(
        running=status.running,
        waiting=waiting_before + status.waiting,
        page_size=page_size,
        pages=sum(status.pages.values()),
        pages_held=held_by_requests(status.pages),
        slots=sum(status.slots.values()),
        slots_held=held_by_requests(status.slots),
        memory_held=max(held_share(status.slots), held_share(status.pages)),
        host_pages=sum(status.host_pages.values()),
        host_pages_used=used(status.host_pages),
    )


def totals_of(counters: Counters) -> Totals:
    """Return the engine's counts since its start."""
    transferred = counters.adopted_tokens - counters.transfer_hit_tokens
    return Totals(
        preemptions=counters.preemptions,
        drafts_proposed=counters.draft_tokens,
        accepted_lengths=counters.accepted_length_tokens,
        uncached_tokens=counters.prompt_tokens - counters.state_hit_tokens + transferred,
        adopted_tokens=transferred,
        host_hit_tokens=counters.host_hit_tokens,
        file_hit_tokens=counters.file_hit_tokens,
    )
