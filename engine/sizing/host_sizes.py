"""The sizes of the host's tier: copies of cached prefixes in the host's memory."""

from dataclasses import dataclass

import torch

from baton.core.errors import ConfigError
from baton.engine.sizing.available import available_memory
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.sizing.readable import readable

_COPIES = 4
"""Slots without bytes, of a model without recurrent layers: one a copy under way is plenty."""


@dataclass(frozen=True)
class HostSizes:
    """The blocks of the host's tier, the padding block of each kind among them. A block has the
    parts of all ranks, which are of one size.

    Where the model has none of a kind, its blocks take no bytes, and there are as many as the
    other kind has use for.
    """

    plan: MemoryPlan

    def __bool__(self) -> bool:
        return bool(self.plan.config.host_tier_bytes)

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot, of all ranks together."""
        return self.plan.config.tp * self.plan.slot_layout.slot_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, of all ranks together."""
        return self.plan.config.tp * self.plan.page_layout.page_bytes

    @property
    def slots(self) -> int:
        each = self.slot_bytes
        return 1 + (self.plan.config.host_cache_state_bytes // each if each else _COPIES)

    @property
    def pages(self) -> int:
        each = self.page_bytes
        if each:
            return 1 + self.plan.config.host_cache_bytes // each
        return 1 + self.slots * self.plan.page_layout.pages_for(self.plan.wanted_len)

    @property
    def nbytes(self) -> int:
        return self.slots * self.slot_bytes + self.pages * self.page_bytes

    def check(self, loaded: int = 0) -> None:
        """Raise ConfigError where a kind has no room for one block, or where the tier and what the
        engine is to take of the same memory exceed what is free of it.

        loaded: bytes of the plan's weights that are in memory already, of each rank.
        """
        if not self:
            return
        plan = self.plan
        for name, blocks, each in (
            ("host_cache_state_gb", self.slots, self.slot_bytes),
            ("host_cache_gb", self.pages, self.page_bytes),
        ):
            if blocks < 2:
                raise ConfigError(
                    f"{name} has no room for one block of {readable(each)}: give it more memory"
                )
        free = available_memory(torch.device("cpu"))
        left = max(0, plan.budget_bytes - loaded)
        beside = 0 if plan.config.on_gpu else plan.config.tp * left
        if self.nbytes + beside > free:
            budget = f" beside the {readable(beside)} of the budget" if beside else ""
            lower = " or memory_gb" if beside else ""
            raise ConfigError(
                f"the host's tier would take {readable(self.nbytes)} of memory{budget}, and "
                f"{readable(free)} are free: lower host_cache_gb and host_cache_state_gb{lower}"
            )
