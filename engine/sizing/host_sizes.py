"""The sizes of the host's tier: copies of cached prefixes in the host's memory."""

from dataclasses import dataclass

from baton.engine.sizing.plan import MemoryPlan

_COPIES = 4
"""Slots without bytes, of a model without recurrent layers: one a copy under way is plenty."""


@dataclass(frozen=True)
class HostSizes:
    """The blocks of the host's tier, the padding block of each kind among them.

    Where the model has none of a kind, its blocks take no bytes, and there are as many as the
    other kind has use for.
    """

    plan: MemoryPlan

    def __bool__(self) -> bool:
        config = self.plan.config
        return bool(config.host_cache_bytes or config.host_cache_state_bytes)

    @property
    def slots(self) -> int:
        each = self.plan.slot_layout.slot_bytes
        return 1 + (self.plan.config.host_cache_state_bytes // each if each else _COPIES)

    @property
    def pages(self) -> int:
        each = self.plan.page_layout.page_bytes
        if each:
            return 1 + self.plan.config.host_cache_bytes // each
        return 1 + self.slots * self.plan.page_layout.pages_for(self.plan.wanted_len)

    @property
    def nbytes(self) -> int:
        slots, pages = self.plan.slot_layout.slot_bytes, self.plan.page_layout.page_bytes
        return self.slots * slots + self.pages * pages
