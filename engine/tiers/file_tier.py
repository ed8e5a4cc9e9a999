"""Prefixes in files: what outlives the process, and whatever its host's memory has evicted.

Finished prefixes, and those that were hit twice, are lent by the host's cache and written behind
requests. Before an admission, a prefix that lies deeper in files than in memory is read into a
reservation that the host's cache keeps; from there it comes to the device as any other.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from baton.core.errors import ConfigError
from baton.engine.cache.cached_pools import FileCounts
from baton.engine.cache.prefix_node import Node
from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.handoff.prefix_share import PrefixShare
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.loading.weights_digest import weights_digest
from baton.engine.request.request import Promotion, Reservation
from baton.engine.schedule.step_speeds import StepSpeeds
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.tiers.copy_thread import Copy, CopyThread
from baton.engine.tiers.file_blocks import FileBlocks
from baton.engine.tiers.file_folder import FileFolder
from baton.engine.tiers.file_names import FileNames, identity_of
from baton.engine.tiers.host_memory import HostPools
from baton.engine.tiers.prefix_copy import PrefixCopy, next_name, take_over
from baton.engine.tiers.saves import Saves
from baton.engine.tiers.state_key import state_key

log = logging.getLogger(__name__)

_MOST_WANTED = 64
"""Prefixes that wait to be written; the oldest are forgotten."""
MOST_HITS = 1024
"""Prefixes of which it is known that they were hit once."""
_MOST_READS = 4
"""Prefixes that are read at once: each has a slot and pages of the host's memory."""
_READ_S = 30.0
"""The time after which a request no longer waits for files."""
_LOOK_S = 10.0
"""Between two looks at what other workers have done in the folder."""
_STOP_S = 30.0
"""The time that a write has to end when it is told to: it looks after each page."""


@dataclass(eq=False)
class _Read:
    """A prefix on its way from files into the host's memory."""

    name: str  # of the last file
    key: bytes  # of its tokens
    reservation: Reservation
    copy: Copy
    waiting: list[Promotion]  # of requests
    deadline: float = field(default_factory=lambda: monotonic() + _READ_S)  # of their wait


class FileTier:
    """Used on the engine's thread; reads and writes run on one thread each."""

    def __init__(
        self,
        device: PrefixShare,
        host: PrefixShare,
        blocks: FileBlocks,
        speeds: StepSpeeds,
        saves: Callable[[], int],
    ) -> None:
        """host: the cache between files and the device's. saves: returns how many prefixes are on
        their way into it."""
        self._device, self._host = device.pools, host
        self._blocks, self._speeds, self._saves = blocks, speeds, saves
        self._counters = device.pools.counters
        self._wanted: OrderedDict[tuple[bytes, bytes], None] = OrderedDict()  # salt and key
        self._hits: OrderedDict[Node, None] = OrderedDict()
        self._seen = 0, 0  # the prefixes that waited, here and for the host, at the last try
        self._write: PrefixCopy | None = None
        self._reads: list[_Read] = []
        self._writer, self._reader = CopyThread("file-write"), CopyThread("file-read")
        self._next_look = monotonic() + _LOOK_S
        self.cost = FetchCost()
        self.on_done: Callable[[], None] = lambda: None
        """Called on another thread when a file is written or read, and `collect` has something to
        do."""

    # Into files --------------------------------------------------------------------------------

    @property
    def writing(self) -> int:
        """Prefixes that are written or wait for it."""
        return len(self._wanted) + (self._write is not None)

    def finished(self, node: Node) -> None:
        """Write the prefix that ends at `node` of the device's cache, once the host has it."""
        self._wanted[self._device.cache.tree.path_key(node)] = None
        if len(self._wanted) > _MOST_WANTED:
            self._wanted.popitem(last=False)
        self.write()

    def hit(self, node: Node) -> None:
        """Write the prefix that ends at `node` if it is hit a second time."""
        if node not in self._hits:
            self._hits[node] = None
            if len(self._hits) > MOST_HITS:
                self._hits.popitem(last=False)
            return
        del self._hits[node]
        if node.attached:
            self.finished(node)

    def write(self) -> None:
        """Write the oldest prefix that the host has by now: longer ones go on from its file."""
        waiting = len(self._wanted), self._saves()
        if self._write is not None or waiting == self._seen:
            return
        self._seen = waiting
        for salt, key in list(self._wanted):
            depth = len(key) // TOKEN_BYTES
            match = self._host.pools.cache.match(key, depth, salt)
            if match.depth == depth:
                del self._wanted[salt, key]
                self._write = each = PrefixCopy(key, salt, self._host.lend_node(match.node))
                work = partial(self._blocks.write, each)
                each.copy = self._writer.run(0, work, lambda: self.on_done())
                return
            if not self._saves():
                del self._wanted[salt, key]  # it is not on its way there

    def _end_write(self, each: PrefixCopy, copy: Copy) -> None:
        self._write, self._seen = None, (0, 0)
        self._host.give_back(each.loan)
        if error := copy.done.exception():
            log.warning("a prefix was not written: %s: %s", type(error).__name__, error)
            self._counters.file_failures += 1
        else:
            self._counters.files_written += copy.done.result() is not None

    # Out of files ------------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """True while no further prefix can be read."""
        return len(self._reads) >= _MOST_READS

    @property
    def reading(self) -> list["Future[float | None]"]:
        """Reads under way."""
        return [read.copy.done for read in self._reads]

    def fetch(self, promotion: Promotion, key: bytes, limit: int, salt: bytes) -> bool:
        """Begin to read the longest prefix of `key`, of at most `limit` tokens, into the host's
        memory, where that is sooner than computing what memory has not. True: wait until the
        promotion is `crowded`, and look at the host's memory again.
        """
        known, page_size = promotion.unfiled, self._host.pools.page_size
        key = key[: limit // page_size * page_size * TOKEN_BYTES]
        chain = self._blocks.chain(key, salt, known // page_size)
        if not chain:
            self._counters.file_misses += 1
            return False
        same = next((each for each in self._reads if each.name == chain[-1].name), None)
        if same is not None:
            same.waiting.append(promotion)
            return True
        depth, pools = chain[-1].end * page_size, self._host.pools
        nbytes = pools.slot_bytes + pools.pages_for(depth - known) * pools.page_bytes
        queued = sum(read.copy.nbytes for read in self._reads)
        if not self.cost.sooner(queued + nbytes, (depth - known) * self._speeds.prompt_token_s):
            return False
        key = key[: depth * TOKEN_BYTES]
        reservation = self._host.reservations.reserve(next_name(), depth, 0, key, salt)
        if reservation is None:
            return False
        work = partial(self._blocks.read, chain, reservation)
        copy = self._reader.run(nbytes, work, lambda: self.on_done())
        self._reads.append(_Read(chain[-1].name, key, reservation, copy, [promotion]))
        return True

    def _end_read(self, read: _Read) -> None:
        self._reads.remove(read)
        for promotion in read.waiting:
            promotion.crowded = True
        copy = read.copy
        self._counters.file_failures += copy.done.exception() is not None
        if take_over(self._host, read.reservation, read.key, copy):
            self.cost.took(copy.nbytes, copy.done.result() or 0.0)

    # Both ways ---------------------------------------------------------------------------------

    def collect(self) -> None:
        """Take over what has been read, and begin what waits for its turn."""
        for read in list(self._reads):
            if read.copy.done.done():
                self._end_read(read)
            elif monotonic() > read.deadline:
                for promotion in read.waiting:
                    promotion.crowded = True
                read.waiting.clear()
        if self._write is not None and self._write.over and self._write.copy is not None:
            self._end_write(self._write, self._write.copy)
        self.write()
        if monotonic() > self._next_look:
            self._next_look = monotonic() + _LOOK_S
            self._writer.run(0, self._blocks.look, lambda: None)

    def counts(self) -> FileCounts:
        """Return what there is of files."""
        folder = self._blocks.folder
        sizes = len(folder), folder.nbytes, folder.budget
        return FileCounts(*sizes, writing=self.writing, reading=len(self._reads))

    def forget(self, salts: bytes) -> None:
        """Write nothing that waits of the salts that begin so, and stop what is written of them."""
        for salt, key in list(self._wanted):
            if salt.startswith(salts):
                del self._wanted[salt, key]
        if (each := self._write) is not None and each.salt.startswith(salts):
            self._stop_write()
            if each.over and each.copy is not None:
                self._end_write(each, each.copy)

    def remove(self, salts: bytes) -> None:
        """Remove all files of the salts that begin so. Raises KeptFileError."""
        self._blocks.remove(salts)

    def close(self) -> None:
        """Stop what is under way, and wait for its end."""
        for read in self._reads:
            read.copy.stop()
        if self._write is not None and self._write.copy is not None:
            self._write.copy.stop()
        self._writer.close()
        self._reader.close()

    def _stop_write(self) -> None:
        if self._write is not None and self._write.copy is not None:
            self._write.copy.stop()
            wait([self._write.copy.done], _STOP_S)


def file_tier(
    plan: MemoryPlan,
    device: PrefixShare,
    host: PrefixShare,
    memory: HostPools,
    speeds: StepSpeeds,
    saves: Saves,
) -> FileTier | None:
    """Open the files of an engine; None: the options ask for none. Raises ConfigError."""
    config = plan.config
    if config.file_cache is None or config.state_key_file is None:
        return None
    root = config.file_cache
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        identity = identity_of(plan, weights_digest(plan.model_config.folder, root))
        folder = FileFolder(root, config.file_cache_bytes, config.file_cache_age_s)
        folder.look()
    except OSError as error:
        raise ConfigError(f"file_cache {root} cannot be used: {error}") from error
    names = FileNames(state_key(config.state_key_file), identity, config.page_size)
    blocks = FileBlocks(memory, folder, names)
    return FileTier(device, host, blocks, speeds, lambda: saves.number)
