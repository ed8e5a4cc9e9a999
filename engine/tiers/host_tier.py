"""The host's tier: copies of cached prefixes in the host's memory, which outlive the pools.

It is one more peer of the sharing of prefixes. Behind requests, what the prefix cache takes over is
lent to it and copied; before an admission, a prefix that lies deeper here than in the device's
cache is lent by it, and copied into a reservation that the device's cache then keeps. State and KV
of a prefix come from one memory each: the state from here, each page from here or from the cache.
"""

import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field
from itertools import count, islice
from time import monotonic

from baton.engine.audit import audit
from baton.engine.cache.prefix_node import Node
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.handoff.prefix_share import Loan, PrefixShare
from baton.engine.handoff.reservations import Reservations
from baton.engine.layout.owners import Owner
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.request.request import Promotion, Request, Reservation
from baton.engine.schedule.canary import canary_for
from baton.engine.schedule.row_planner import RowPlanner
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.sizing.host_sizes import HostSizes
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.tiers.block_copier import BlockCopier, Blocks, Copy
from baton.engine.tiers.host_memory import HostPools, host_pools

log = logging.getLogger(__name__)

_LOOKED_AHEAD = 2
"""Waiting requests, beside those that could run now, for which prefixes are copied back: one that
is copied too early only pushes others out of the cache."""
_MOST_LOADS = 4
"""Prefixes that are copied back at once: each has a slot and pages that no request has then."""
_MOST_QUEUED = 256
"""Prefixes that wait to be copied here; the oldest are forgotten."""
_PAUSE = 16
"""Steps without a new copy after one was given up for a request."""
_IDLE_S = 0.02
"""The longest that the engine's calls wait, where there is nothing to do but to copy back."""
_LOAD_S = 30.0
"""The time after which a request no longer waits for its prefix."""
_RECALL_S = 30.0
"""The time that a copy has to end when its memory is needed: it looks after each piece."""


@dataclass(eq=False)
class _Transfer:
    """A prefix on its way from the cache of one memory to that of the other."""

    name: str
    key: bytes  # of its tokens, see `token_key`
    salt: bytes
    loan: Loan  # from the one
    reservation: Reservation | None = None  # in the other; None: it waits for a step to be over
    copy: Copy | None = None  # once there is a reservation
    promotion: Promotion | None = None  # of the request that waits for it
    deadline: float = field(default_factory=lambda: monotonic() + _LOAD_S)  # of its wait

    @property
    def over(self) -> bool:
        return self.copy is not None and self.copy.done.done()


class HostTier:
    """Used on the engine's thread, like the caches on both its sides."""

    def __init__(
        self,
        device: PrefixShare,
        host: PrefixShare,
        memory: HostPools,
        saving: BlockCopier,
        loading: BlockCopier,
        scheduler: Scheduler,
        planner: RowPlanner,
        most_running: int,
    ) -> None:
        """saving, loading: from the device's pools into the host's, and back. planner: knows how
        far a request may resume."""
        self._device, self.host = device, host
        self.memory = memory
        self._saving, self._loading = saving, loading
        self._scheduler, self._planner = scheduler, planner
        self._most_running = most_running
        self._counters = device.pools.counters
        self._queue: OrderedDict[Node, bool] = OrderedDict()  # newest last; True: a later one of
        # the same text takes its place
        self._saved: _Transfer | None = None  # on its way here
        self._loads: list[_Transfer] = []
        self._cost = FetchCost()
        self._names = count(1)
        self._paused_until = 0  # a step's number
        self.on_done: Callable[[], None] = lambda: None
        """Called on another thread when a copy is done, and `collect` has something to do."""

    # Into the host's memory ------------------------------------------------------------------

    def kept(self, node: Node, *, last: bool) -> None:
        """See `Backup`. The newest prefix is copied first, in place of those of the same text that
        wait."""
        if last:
            self._forget_above(node)
        self._queue[node] = last
        self._queue.move_to_end(node)
        if len(self._queue) > _MOST_QUEUED:
            self._queue.popitem(last=False)
        self._save_next()

    def _forget_above(self, node: Node) -> None:
        """Forget the last prefix above `node` that waits. Points where texts part stay."""
        above = node.parent
        while above is not None:
            if self._queue.get(above):
                del self._queue[above]
            if above.snapshot is not None or above in self._queue:
                return
            above = above.parent

    def recallable(self) -> tuple[int, int]:
        """See `Backup`."""
        if self._saved is None:
            return 0, 0
        node: Node | None = self._saved.loan.node
        slots = int(node is not None and node.snapshot is not None and node.snapshot_locks == 1)
        pages = 0
        while node is not None:
            pages += len(node.pages) if node.page_locks == 1 else 0
            node = node.parent
        return slots, pages

    def recall(self) -> None:
        """See `Backup`. The copy begins anew later, where the prefix is still cached then."""
        given_up = self._saved
        if given_up is None or given_up.copy is None:
            return
        given_up.copy.stop()
        wait([given_up.copy.done], _RECALL_S)
        if not given_up.over:
            return
        if not self._end_save(given_up):
            self._counters.host_recalls += 1
            self._queue.setdefault(given_up.loan.node, True)
            self._queue.move_to_end(given_up.loan.node, last=False)
            self._paused_until = self._device.pools.launched + _PAUSE

    def _save_next(self) -> None:
        """Begin to copy the newest prefix that waits and that is not here yet."""
        stateful = self._device.pools.stateful
        if self._device.pools.launched < self._paused_until and self._scheduler.admitted:
            return
        while self._queue and self._saved is None:
            node, last = self._queue.popitem()
            if not node.attached or (stateful and node.snapshot is None):
                continue
            salt, key = self._device.pools.cache.tree.path_key(node)
            if self.host.pools.cache.match(key, node.depth, salt).depth >= node.depth:
                continue
            self._save(node, key, salt)
            if self._saved is None and self._loads and self._fits(node.depth):
                self._queue[node] = last  # what is lent here comes back when a load ends
                return

    def _fits(self, tokens: int) -> bool:
        """Return true if a prefix of so many tokens has room here once nothing else is here."""
        return self.host.pools.pages_for(tokens) <= self.host.pools.total_pages

    def _save(self, node: Node, key: bytes, salt: bytes) -> None:
        """Begin to copy `node`, if there is room for it beside what is lent here."""
        name = self._name()
        reservation = self.host.reservations.reserve(name, node.depth, 0, key, salt)
        if reservation is None:
            return
        loan = self._device.lend_node(node)
        copy = self._started(self._saving, loan, reservation)
        self._saved = _Transfer(name, key, salt, loan, reservation, copy)

    def _end_save(self, saved: _Transfer) -> bool:
        """Take over what was copied, and give back what was lent. False: it is not whole."""
        self._saved = None
        self._device.give_back(saved.loan)
        whole = self._kept(self.host, saved)
        if whole and saved.reservation is not None:
            self._counters.host_snapshots_saved += self._device.pools.stateful
            self._counters.host_pages_saved += len(saved.reservation.owned)
        return whole

    # Back into the device's ------------------------------------------------------------------

    @property
    def saving(self) -> bool:
        """True while a prefix is copied here, or waits for that."""
        return self._saved is not None or bool(self._queue)

    @property
    def has_work(self) -> bool:
        """True while prefixes are copied back, whose memory is nobody's to take, and where one that
        was given up for requests may be copied here again."""
        idle = self._saved is None and not self._scheduler.admitted
        return bool(self._loads) or (idle and bool(self._queue))

    @property
    def tickets(self) -> int:
        """Reservations of the device that are for prefixes on their way back."""
        return sum(load.reservation is not None for load in self._loads)

    def promote(self) -> None:
        """Begin to copy what the next requests could resume from. Called before a step's plan."""
        self.collect()
        for load in [each for each in self._loads if each.reservation is None]:
            self._reserve(load)
        pools, waiting = self._device.pools, self._scheduler.waiting
        places = self._most_running - self._scheduler.admitted
        room = pools.free_pages - self._scheduler.headroom
        for request in islice(waiting, max(_LOOKED_AHEAD, places)):
            room -= pools.pages_for(request.target)
            if room < 0 and request is not waiting.first:
                break  # its prefix would push out those that came back for requests before it
            promotion = request.promotion
            if (promotion is None or promotion.crowded) and not request.pending:
                request.promotion = self._looked(request)
        idle = not self._scheduler.running and self._scheduler.next_admissible() is None
        if self._loads and idle and pools.launched == pools.completed:
            copies = [load.copy.done for load in self._loads if load.copy is not None]
            wait(copies, _IDLE_S, FIRST_COMPLETED)
            self.collect()

    def _looked(self, request: Request) -> Promotion | None:
        """Look how far `request` could resume from each memory, and begin a copy where that is
        sooner than computing. As before where too many are under way: the request waits for its
        turn."""
        limit = max(0, self._planner.resume_limit(request))
        key, salt = request.key(0, request.target), request.spec.cache_salt
        there = self.host.pools.cache.match(key, limit, salt)
        here = self._device.pools.cache.match(key, limit, salt) if there.depth else there
        promotion = Promotion(here.depth, there.depth)
        if (before := request.promotion) is not None:
            # What has come for it since then is the host's all the same.
            promotion.below = min(before.below, here.depth)
            promotion.copied = before.copied and here.depth >= there.depth
            promotion.again = before.again - (before.copied and not promotion.copied)
        if there.depth <= here.depth or not self._sooner(here.depth, there.depth, here.kv_depth):
            promotion.over = True
            return promotion
        if len(self._loads) >= _MOST_LOADS:
            return before
        loan = self.host.lend_node(there.node)
        load = _Transfer(self._name(), key[: there.depth * TOKEN_BYTES], salt, loan)
        load.promotion = promotion
        self._loads.append(load)
        self._reserve(load)
        return promotion

    def _sooner(self, here: int, there: int, kv: int) -> bool:
        """Return true if copying is sooner than computing the tokens from `here` to `there`. kv:
        tokens whose KV need not be copied."""
        pools = self.host.pools
        nbytes = pools.slot_bytes + pools.pages_for(max(0, there - kv)) * pools.page_bytes
        computing_s = (there - here) * self._scheduler.speeds.prompt_token_s
        return self._cost.sooner(nbytes, computing_s)

    def _reserve(self, load: _Transfer) -> None:
        """Reserve memory for a prefix and begin to copy it; or give it up, where there is none."""
        tokens, headroom = load.loan.state.tokens, self._scheduler.headroom
        reservations = self._device.reservations
        load.reservation = reservations.reserve(load.name, tokens, headroom, load.key, load.salt)
        if load.reservation is not None:
            load.copy = self._started(self._loading, load.loan, load.reservation)
        elif not reservations.promised(load.name):
            self._end_load(load)
            if load.promotion is not None:
                load.promotion.crowded = True

    def _end_load(self, load: _Transfer) -> None:
        self._loads.remove(load)
        self.host.give_back(load.loan)
        if load.promotion is not None:
            load.promotion.over = True
        if load.copy is not None and self._kept(self._device, load):
            if load.promotion is not None:
                load.promotion.copied = True
            seconds = load.copy.done.result()
            self._cost.took(load.copy.nbytes, seconds or 0.0)

    # Both ways -------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take over what has been copied, and begin what waits for its turn."""
        for load in list(self._loads):
            if load.over:
                self._end_load(load)
            elif monotonic() > load.deadline and load.promotion is not None:
                load.promotion.over = True
        if self._saved is not None and self._saved.over:
            self._end_save(self._saved)
        self._save_next()

    def flush(self) -> bool:
        """See `Backup`. What is being copied back stays."""
        self.recall()
        self._queue.clear()
        self.host.pools.cache.flush()
        return not self.host.pools.cache.nodes

    def counts(self) -> tuple[dict[Owner, int], dict[Owner, int]]:
        """See `Backup`."""
        return self.host.pools.slots.counts(), self.host.pools.pages.counts()

    def copies(self) -> tuple[int, int]:
        """See `Backup`."""
        return len(self._queue) + (self._saved is not None), len(self._loads)

    def audit(self) -> list[str]:
        """See `Backup`."""
        found = audit(self.host.pools, (), self.host.reservations, self.host.loans, ())
        return [f"the host's tier: {each}" for each in found]

    def close(self) -> None:
        """Wait for the copies under way; nothing may be asked of it after this."""
        for each in (*self._loads, self._saved):
            if each is not None and each.copy is not None:
                each.copy.stop()
        self._saving.close()
        self._loading.close()

    def _name(self) -> str:
        return f"tier-{next(self._names)}"

    def _started(self, copier: BlockCopier, loan: Loan, reservation: Reservation) -> Copy:
        lent, reserved = loan.state, reservation.state
        known = len(reserved.pages) - len(reservation.owned)
        slots = [(lent.slot, reserved.slot)] if self._device.pools.stateful else []
        pages = zip(lent.pages[known:], reservation.owned, strict=True)
        return copier.start(slots, list(pages), lambda: self.on_done())

    def _kept(self, share: PrefixShare, transfer: _Transfer) -> bool:
        """Give what was copied to the cache at its end, or free it where it is not whole."""
        copy, reservation = transfer.copy, transfer.reservation
        if copy is None or reservation is None:
            return False
        error = copy.done.exception()
        if error is not None:
            log.warning("a prefix was not copied: %s: %s", type(error).__name__, error)
            self._counters.host_failures += 1
        if error is not None or copy.done.result() is None:
            share.reservations.abandon(reservation)
            return False
        share.keep(reservation, array("i", transfer.key))
        return True


def host_tier(
    plan: MemoryPlan,
    device: PrefixShare,
    states: StatePool,
    pages: PagePool,
    scheduler: Scheduler,
    planner: RowPlanner,
) -> HostTier | None:
    """Allocate the host's tier of a device's pools; None: the options ask for none. Raises
    ConfigError.
    """
    if not (sizes := HostSizes(plan)):
        return None
    pools = host_pools(sizes)
    canary = canary_for(plan.config, plan.model_config, plan.tables.width)
    ours, theirs = (states.storage, pages.storage), (pools.states, pools.pages)
    saved = [Blocks(*each) for each in zip(ours, theirs, strict=True)]
    loaded = [Blocks(*each) for each in zip(theirs, ours, strict=True)]
    tier = HostTier(
        device,
        PrefixShare(pools.cached, Reservations(pools.cached, pools.cached.counters), canary),
        pools,
        BlockCopier("save", saved, states.storage.device),
        BlockCopier("load", loaded, states.storage.device),
        scheduler,
        planner,
        plan.max_running,
    )
    device.pools.backup = tier
    return tier
