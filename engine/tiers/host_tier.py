"""The host's tier: copies of cached prefixes in the host's memory, which outlive the pools.

It is one more peer of the sharing of prefixes. Behind requests, what the prefix cache takes over is
lent to it and copied; before an admission, a prefix that lies deeper here than in the device's
cache is lent by it, and copied into a reservation that the device's cache then keeps. State and KV
of a prefix come from one memory each: the state from here, each page from here or from the cache.
"""

from collections.abc import Callable, Sequence

from baton.engine.audit import audit
from baton.engine.cache.cached_pools import FileCounts
from baton.engine.cache.prefix_node import Node
from baton.engine.handoff.prefix_share import PrefixShare
from baton.engine.handoff.reservations import Reservations
from baton.engine.layout.owners import Owner
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.schedule.canary import canary_for
from baton.engine.schedule.row_planner import RowPlanner
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.sizing.host_sizes import HostSizes
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.tiers.block_copier import BlockCopier, Blocks
from baton.engine.tiers.file_tier import FileTier, file_tier
from baton.engine.tiers.host_memory import HostPools, host_pools
from baton.engine.tiers.loads import Loads
from baton.engine.tiers.prefix_copy import CopyRoute
from baton.engine.tiers.saves import Saves


class HostTier:
    """Used on the engine's thread, like the caches on both its sides."""

    def __init__(
        self,
        host: PrefixShare,
        memory: HostPools,
        saves: Saves,
        loads: Loads,
        files: FileTier | None,
    ) -> None:
        self.host, self.memory = host, memory
        self.saves, self.loads, self.files = saves, loads, files

    def on_done(self, call: Callable[[], None]) -> None:
        """Let `call` be called on another thread when a copy is done, and `collect` has something
        to do."""
        self.saves.route.on_done = self.loads.route.on_done = call
        if self.files is not None:
            self.files.on_done = call

    @property
    def saving(self) -> bool:
        """True while a prefix is copied here, or waits for that."""
        return self.saves.busy

    @property
    def has_work(self) -> bool:
        """True while prefixes are copied back, whose memory is nobody's to take, and where one that
        was given up for requests may be copied here again."""
        reading = self.files is not None and bool(self.files.reading)
        return bool(self.loads.number) or reading or self.saves.has_work

    @property
    def tickets(self) -> int:
        """Reservations of the device that are for prefixes on their way back."""
        return self.loads.tickets

    def promote(self) -> None:
        """Begin to copy what the next requests could resume from. Called before a step's plan."""
        self.collect()
        self.loads.promote()
        self.loads.wait()

    def collect(self) -> None:
        """Take over what has been copied, and begin what waits for its turn."""
        self.loads.collect()
        if self.files is not None:
            self.files.collect()
        self.saves.collect()
        if self.files is not None:
            self.files.write()  # what has come here just now

    # What the device's cache asks: see `Backup` -----------------------------------------------

    def kept(self, node: Node, *, last: bool) -> None:
        """See `Backup`. The newest prefix is copied first, in place of those of the same text that
        wait."""
        self.saves.add(node, last=last)

    def finished(self, node: Node) -> None:
        """See `Backup`. Files take what is finished."""
        if self.files is not None:
            self.files.finished(node)

    def hit(self, node: Node) -> None:
        """See `Backup`. Files take what is hit twice."""
        if self.files is not None:
            self.files.hit(node)

    def recallable(self) -> tuple[int, int]:
        """See `Backup`."""
        return self.saves.recallable()

    def recall(self) -> None:
        """See `Backup`."""
        self.saves.recall()

    def flush(self, salts: bytes = b"") -> bool:
        """See `Backup`. What is being copied back stays. Files go last: nothing is left then that
        could be written again. Raises KeptFileError.
        """
        self.saves.flush(salts)
        if self.files is not None:
            self.files.forget(salts)
        cache = self.host.pools.cache
        cache.flush(salts)
        expected = (each.cache_salt.startswith(salts) for each in self.host.reservations)
        if any(expected) or cache.tree.holds(salts):
            return False
        if self.files is not None:
            self.files.remove(salts)
        return True

    def counts(self) -> tuple[dict[Owner, int], dict[Owner, int]]:
        """See `Backup`."""
        return self.host.pools.slots.counts(), self.host.pools.pages.counts()

    def copies(self) -> tuple[int, int]:
        """See `Backup`."""
        return self.saves.number, self.loads.number

    def file_counts(self) -> FileCounts | None:
        """See `Backup`."""
        return self.files.counts() if self.files is not None else None

    def audit(self) -> list[str]:
        """See `Backup`."""
        found = audit(self.host.pools, (), self.host.reservations, self.host.loans, ())
        return [f"the host's tier: {each}" for each in found]

    def close(self) -> None:
        """Wait for the copies under way; nothing may be asked of it after this."""
        self.saves.close()
        self.loads.close()
        if self.files is not None:
            self.files.close()


def host_tier(
    plan: MemoryPlan,
    device: PrefixShare,
    storages: Sequence[RankStorage],
    scheduler: Scheduler,
    planner: RowPlanner,
) -> HostTier | None:
    """Allocate the host's tier of a device's pools; None: the options ask for none. storages: of
    the pools of all ranks. Raises ConfigError.
    """
    if not (sizes := HostSizes(plan)):
        return None
    memory = host_pools(sizes)
    pools = memory.cached
    canary = canary_for(plan.config, plan.model_config, plan.tables.width)
    host = PrefixShare(pools, Reservations(pools, pools.counters), canary)
    ours = [each for rank in storages for each in rank]
    theirs = [each for rank in range(memory.ranks) for each in memory.of_rank(rank)]
    saved = [Blocks(*each) for each in zip(ours, theirs, strict=True)]
    loaded = [Blocks(*each) for each in zip(theirs, ours, strict=True)]
    where = [rank.states.device for rank in storages]
    saving = CopyRoute(device, host, BlockCopier("save", saved, *where), device.pools.counters)
    loading = CopyRoute(host, device, BlockCopier("load", loaded, *where), device.pools.counters)
    saves = Saves(saving, idle=lambda: not scheduler.admitted)
    files = file_tier(plan, device, host, memory, scheduler.speeds, saves)
    loads = Loads(loading, scheduler, planner, plan.max_running, files)
    tier = HostTier(host, memory, saves, loads, files)
    device.pools.backup = tier
    return tier
