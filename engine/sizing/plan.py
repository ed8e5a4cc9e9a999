"""The division of a memory budget. A pure function of numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from baton.core.errors import ConfigError
from baton.engine.layout.grids import Grids, Strategy, resolve
from baton.engine.layout.layout import PageLayout, SlotLayout
from baton.engine.memory.request_tables import TableSizes
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.sizing.device_overhead import DeviceOverhead
from baton.engine.sizing.engine_options import check_options
from baton.engine.sizing.plan_help import check_optional, what_helps
from baton.engine.sizing.readable import readable
from baton.engine.sizing.step_memory import StepMemory
from baton.engine.speculation.shared_texts import TOKEN_BYTES

SNAPSHOTS_A_REQUEST = 8  # cached snapshots for each running request, where there is room
MOST_SNAPSHOTS_A_PREFILL = 8
# Steps in which a slot may be a track slot or a locked snapshot: one is planned, one is in flight,
# and one reads it.
_TRACKED_STEPS = 3
# Prompt tokens a step. 512 keep a few cores as busy as more do (measured from 256 to 2048).
_CPU_CHUNK, _GPU_CHUNK = 512, 2048
_TOKENS_A_REQUEST = 2048
"""Tokens of a request, about, for whose pages the default of max_running leaves room."""
_GPU_SPARE = 1 << 30
"""Bytes of a GPU's free memory that are left to others."""


@dataclass(frozen=True)
class MemoryPlan:
    """The sizes of all pools, by the model and the budget.

    available_bytes: what the device has free, the weights included. total_bytes: all memory of a
    GPU; None: as much as is free.

    Raises ConfigError when the options do not fit, with what would.

    Large because each property is one number of the plan, derived from the four fields; nothing is
    stored twice.
    """

    config: EngineConfig
    model_config: ModelConfig
    weight_bytes: int
    available_bytes: int
    total_bytes: int | None = None

    def __post_init__(self) -> None:
        check_options(self.config, self.model_config, self.chunked_prefill_size, self.donates_live)
        if not self._fits(self.max_running):
            check_optional(
                self.budget_bytes,
                self.budget_bytes - self._needed(self.max_running),
                self.max_running,
                buffers=self.config.staging_bytes,
                snapshots=self._wanted_snapshots,
                slot_bytes=self.slot_layout.slot_bytes,
            )
            raise ConfigError(self._refusal())

    @cached_property
    def max_running(self) -> int:
        """The requests that decode at once: as configured, or as many as have pages for
        _TOKENS_A_REQUEST each; where that is not even one, as many as fit at all."""
        most = self.config.most_running
        if self.config.max_running is not None or self._serves(most):
            return most
        return _largest(self._serves, most) or _largest(self._fits, most) or 1

    def _serves(self, running: int) -> bool:
        """Return True if so many fit, each with pages and snapshots for _TOKENS_A_REQUEST."""
        each = self.page_layout.pages_for(min(self.wanted_len, _TOKENS_A_REQUEST))
        more = (each - 1) * running * self._page_cost
        return self._fits(running, 2 * more if self._caches_state else more)

    def _refusal(self) -> str:
        """Say what does not fit, and which options would help."""
        wanted = self._pool_bytes(self.max_running)
        beside = self.step_bytes + (self.overhead_bytes if self.counts_overhead else 0)
        message = (
            f"max_running {self.max_running} needs {readable(wanted)} for states and "
            f"pages, but {readable(self.budget_bytes)} of budget leave "
            f"{readable(max(0, self.pool_bytes))} after {readable(self.weight_bytes)} of weights, "
            f"{readable(beside)} for a step and {readable(self.tables.nbytes)} of request "
            "tables"
        )
        largest = _largest(self._fits, self.max_running)
        most = f"the largest max_running that fits is {largest}"
        message += f"; {most if largest else 'not even one request fits'}"
        card = self.available_bytes if self.total_bytes is None else self.total_bytes
        helps = what_helps(
            self.config,
            largest,
            weights=self.weight_bytes,
            card=card,
            others=card - self.available_bytes,
            chunk=self.chunked_prefill_size,
            length=self.wanted_len,
        )
        return f"{message}. What would help: {', '.join(helps)}"

    @property
    def chunked_prefill_size(self) -> int:
        """The most prompt tokens of a step: as many as keep the device busy. More would only delay
        the step's other tokens."""
        given = self.config.chunked_prefill_size
        if given is not None:
            return given
        return _CPU_CHUNK if self.config.device == "cpu" else _GPU_CHUNK

    @cached_property
    def slot_layout(self) -> SlotLayout:
        model = self.model_config
        return SlotLayout(model.recurrent, model.conv_dtype, model.ssm_dtype)

    @cached_property
    def page_layout(self) -> PageLayout:
        model = self.model_config
        return PageLayout(model.attention, self.config.page_size, model.dtype)

    @property
    def budget_bytes(self) -> int:
        """The bytes for weights, pools and activations together."""
        config = self.config
        if config.memory_bytes is not None:
            return config.memory_bytes
        if config.on_gpu:
            total = self.available_bytes if self.total_bytes is None else self.total_bytes
            return max(0, min(int(total * config.fraction), self.available_bytes - _GPU_SPARE))
        left = self.available_bytes - config.workers_on_host * config.host_tier_bytes
        return int(max(0, left) * config.fraction) // (config.workers_on_host * config.tp)

    @property
    def overhead_bytes(self) -> int:
        """The bytes that a GPU loses beside what torch allocates."""
        return self.overhead(self.max_running).total if self.config.on_gpu else 0

    @property
    def counts_overhead(self) -> bool:
        """True where they are in the budget, because it is a part of a card's memory."""
        return self.config.on_gpu and self.config.memory_bytes is None

    def overhead(self, running: int) -> DeviceOverhead:
        config, model = self.config, self.model_config
        sizes = running, len(model.layers), config.window, config.tp
        return DeviceOverhead(*sizes, config.graphs, drafts=model.mtp)

    @property
    def step(self) -> StepMemory:
        """The memory of the largest step."""
        return self._step(self.max_running)

    def _step(self, running: int) -> StepMemory:
        return StepMemory(
            model=self.model_config,
            device=self.config.device,
            running=running,
            prompt_tokens=self.chunked_prefill_size,
            context=self.wanted_len,
            window=self.config.window,
            captures=self.config.graphs,
            trees=self.config.trees,
        )

    @property
    def step_bytes(self) -> int:
        """Bytes of the largest step, beside weights and pools."""
        return self.step.total

    @cached_property
    def grids(self) -> Grids:
        """The depths of snapshots."""
        model, page_size = self.model_config, self.config.page_size
        chunk = model.mamba_chunk_size if model.recurrent else page_size
        return Grids(chunk, page_size, self.config.mamba_track_interval)

    @property
    def tables(self) -> TableSizes:
        """The request tables: rows of the running requests and of those adopted beyond them."""
        return self._tables(self.max_running)

    def _tables(self, running: int) -> TableSizes:
        length = self.wanted_len
        return TableSizes(
            rows=1 + running + self.ticket_slots,
            width=self.page_layout.pages_for(length),
            length=length,
            vocab_size=self.model_config.vocab_size,
        )

    @property
    def pool_bytes(self) -> int:
        """The bytes that the pools may take."""
        beside = self.texts_bytes + self.config.staging_bytes
        beside += self.overhead_bytes if self.counts_overhead else 0
        return self.budget_bytes - self.weight_bytes - self.step_bytes - self.tables.nbytes - beside

    @property
    def tensor_bytes(self) -> int:
        """The bytes of weights, pools, request tables and the largest step."""
        pools = self.slots * self.slot_layout.slot_bytes + self.pages * self.page_layout.page_bytes
        return self.weight_bytes + pools + self.tables.nbytes + self.step_bytes

    @property
    def texts_bytes(self) -> int:
        """The most bytes of texts that drafts are looked up in: on the host, so that on a GPU they
        are not in the budget.
        """
        on_host = self.config.device != "cpu"
        return 0 if on_host else self.config.speculative_ngram_capacity * TOKEN_BYTES

    @property
    def live_slots(self) -> int:
        """Running requests, held ones among them."""
        return self.max_running

    @property
    def ticket_slots(self) -> int:
        return self.config.tickets

    @property
    def quarantine_slots(self) -> int:
        """Slots, beside the tickets, of hand-offs that are over and whose peer may still write."""
        return -(-self.config.tickets // 2)

    @property
    def track_slots(self) -> int:
        """Snapshots that planned steps may write, or that a row is to read: some of a prompt chunk,
        and those of the decoding rows that are tracked at once."""
        return self._track_slots(self.max_running, self.snapshots_per_prefill)

    def _track_slots(self, running: int, snapshots: int) -> int:
        """Return `track_slots` for so many requests, and snapshots of a prompt's chunk."""
        return self._tracked_rows(running) + snapshots if self.tracks else 0

    def _tracked_rows(self, running: int) -> int:
        """Estimate how many decoding rows are tracked at once: one in `grids.decode` a step. If
        they came at random, more would be needed in less than one of 100 steps; then they take
        slots of cached snapshots, or go without.
        """
        mean = _TRACKED_STEPS * running / self.grids.decode
        return min(running, math.ceil(mean + 3 * math.sqrt(mean)))

    @cached_property
    def snapshots_per_prefill(self) -> int:
        """The most snapshots of a prompt's chunk: as configured, or as many as the budget has slots
        for beside each running request, 1 to MOST_SNAPSHOTS_A_PREFILL.
        """
        if self.config.snapshots_per_prefill is not None:
            return self.config.snapshots_per_prefill
        if not self.tracks or not self.slot_layout.slot_bytes:
            return 1
        running = self.max_running
        slots = 1 + running + self._tracked_rows(running)
        slots += self.ticket_slots + self.quarantine_slots
        left = self.pool_bytes - self._least_bytes(running, slots)
        each = max(0, left) // 2 // self.slot_layout.slot_bytes // running
        return min(MOST_SNAPSHOTS_A_PREFILL, max(1, each))

    @property
    def tracks(self) -> bool:
        """True if snapshots are taken in slots of their own."""
        strategy = resolve(
            self.config.mamba_scheduler_strategy,
            len(self.model_config.recurrent),
            self.config.page_size,
        )
        return self._caches_state and strategy is Strategy.EXTRA_BUFFER

    @property
    def donates_live(self) -> bool:
        """True if a request's live state is cached when it ends (no_buffer)."""
        return self._caches_state and not self.tracks

    @property
    def _caches_state(self) -> bool:
        return self.config.prefix_caching and bool(self.model_config.recurrent)

    @property
    def snapshot_slots(self) -> int:
        """Snapshots that the prefix cache may keep while every other slot is in use: as configured,
        or as many as bring slots and pages to `mamba_full_memory_ratio`. By default half of what
        the budget leaves, up to SNAPSHOTS_A_REQUEST for each running request.
        """
        if not self._caches_state:
            return 0
        if self.config.cached_snapshots is not None:
            return self.config.cached_snapshots
        slot_bytes = self.slot_layout.slot_bytes
        least = self._pool_bytes(self.max_running, self.snapshots_per_prefill)
        most = max(0, self.pool_bytes - least) // slot_bytes
        ratio = self.config.mamba_full_memory_ratio
        if ratio is None or not self.page_layout.page_bytes:
            return min(SNAPSHOTS_A_REQUEST * self.max_running, most // 2)
        wanted = int(self.pool_bytes * ratio / (1 + ratio)) // slot_bytes
        return min(most, max(0, wanted - self._busy_slots))

    @property
    def slots(self) -> int:
        """Rows of the state pool, the padding slot among them."""
        return self._busy_slots + self.snapshot_slots

    @property
    def _busy_slots(self) -> int:
        """Slots that are not the cache's: padding, live, track, tickets, quarantine."""
        busy = self.live_slots + self.ticket_slots + self.quarantine_slots + self.track_slots
        return 1 + busy

    @property
    def pages(self) -> int:
        """Rows of the page pool, the padding page among them: as many as the memory beside the
        slots allows, and at most what full slots of the longest sequences could use."""
        per_request = self.page_layout.pages_for(self.wanted_len)
        cached = self.snapshot_slots if self._caches_state else self.live_slots
        sequences = self.live_slots + self.ticket_slots + cached * self.config.prefix_caching
        useful = 1 + sequences * per_request
        if not self.page_layout.page_bytes:
            return useful
        left = self.pool_bytes - self.slots * self.slot_layout.slot_bytes
        return min(useful, left // self._page_cost)

    @property
    def mamba_full_memory_ratio(self) -> float | None:
        """Bytes of state slots by bytes of pages, as planned; None for a model without KV."""
        pages = self.pages * self.page_layout.page_bytes
        return self.slots * self.slot_layout.slot_bytes / pages if pages else None

    @cached_property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens: one that long fits the pages alone."""
        return min(self.wanted_len, (self.pages - 1) * self.config.page_size)

    @property
    def wanted_len(self) -> int:
        return self.config.max_model_len or self.model_config.max_model_len

    def _pool_bytes(self, running: int, snapshots: int | None = None) -> int:
        """Return the least bytes that `running` requests need: a slot and a page each, padding,
        tickets; and pages for one sequence of the length that was asked for.

        snapshots: of a prompt's chunk; None: as few as can be.
        """
        least = self.config.snapshots_per_prefill or 1
        tracked = self._track_slots(running, least if snapshots is None else snapshots)
        tickets = self.ticket_slots + self.quarantine_slots
        return self._least_bytes(running, 1 + running + tracked + tickets)

    def _least_bytes(self, running: int, slots: int) -> int:
        """Return the bytes of `slots` slots, and of pages for `running` requests or one of the
        longest.
        """
        longest = self.config.max_model_len or self.config.page_size
        pages = 1 + max(running, self.page_layout.pages_for(longest))
        return slots * self.slot_layout.slot_bytes + pages * self._page_cost

    @property
    def _page_cost(self) -> int:
        """Bytes of a page, and of its part when a step gathers the latents of its contexts."""
        gathered = self._step(1).gathered_token_bytes * self.config.page_size
        return self.page_layout.page_bytes + gathered

    @property
    def gathered_bytes(self) -> int:
        """Bytes of one layer's latents of all pages, gathered."""
        return self.pages * self.config.page_size * self.step.gathered_token_bytes

    @property
    def _wanted_snapshots(self) -> int:
        """Snapshots that were asked for, as a number."""
        return (self.config.cached_snapshots or 0) if self._caches_state else 0

    def _needed(self, running: int) -> int:
        """Return the least bytes that the model and `running` requests need."""
        beside = self.weight_bytes + self.texts_bytes
        beside += self._step(running).total + self._tables(running).nbytes
        if self.counts_overhead:
            beside += self.overhead(running).total
        return beside + self._pool_bytes(running)

    def _fits(self, running: int, more: int = 0) -> bool:
        """Return True if so many requests fit, with what was asked for beside them and `more`
        bytes."""
        optional = self._wanted_snapshots * self.slot_layout.slot_bytes + self.config.staging_bytes
        return self._needed(running) + optional + more <= self.budget_bytes


def _largest(fits: Callable[[int], bool], beyond: int) -> int:
    """Find the largest number below `beyond` that fits, 0 for none, by bisection."""
    fit, fails = 0, beyond
    while fails - fit > 1:
        middle = (fit + fails) // 2
        if fits(middle):
            fit = middle
        else:
            fails = middle
    return fit
