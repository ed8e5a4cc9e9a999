"""Copies of what the device's cache takes over, in the host's memory: newest first."""

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import wait

from baton.engine.cache.prefix_node import Node
from baton.engine.tiers.prefix_copy import CopyRoute, PrefixCopy

_MOST_QUEUED = 256
"""Prefixes that wait to be copied; the oldest are forgotten."""
_PAUSE = 16
"""Steps without a new copy after one was given up for a request."""
_RECALL_S = 30.0
"""The time that a copy has to end when its memory is needed: it looks after each piece."""


class Saves:
    """The queue of prefixes that are copied behind requests, one at a time."""

    def __init__(self, route: CopyRoute, idle: Callable[[], bool]) -> None:
        """route: from the device's cache into the host's. idle: true while no request runs."""
        self.route, self._idle = route, idle
        self._device, self._host = route.source.pools, route.target.pools
        self._counters = self._device.counters
        self._queue: OrderedDict[Node, bool] = OrderedDict()  # newest last; True: a later one of
        # the same text takes its place
        self._current: PrefixCopy | None = None
        self._paused_until = 0  # a step's number

    @property
    def busy(self) -> bool:
        """True while a prefix is copied, or waits for that."""
        return self._current is not None or bool(self._queue)

    @property
    def has_work(self) -> bool:
        """True where a prefix that was given up for requests may be copied again."""
        return self._current is None and self._idle() and bool(self._queue)

    @property
    def number(self) -> int:
        """Prefixes that are copied or wait for it."""
        return len(self._queue) + (self._current is not None)

    def add(self, node: Node, *, last: bool) -> None:
        """Queue a prefix in place of those of the same text that wait; see `Backup.kept`."""
        if last:
            self._forget_above(node)
        self._queue[node] = last
        self._queue.move_to_end(node)
        if len(self._queue) > _MOST_QUEUED:
            self._queue.popitem(last=False)
        self._begin_next()

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
        if self._current is None:
            return 0, 0
        node: Node | None = self._current.loan.node
        slots = int(node is not None and node.snapshot is not None and node.snapshot_locks == 1)
        pages = 0
        while node is not None:
            pages += len(node.pages) if node.page_locks == 1 else 0
            node = node.parent
        return slots, pages

    def recall(self) -> None:
        """See `Backup`. The copy begins anew later, where the prefix is still cached then."""
        given_up = self._current
        if given_up is None or given_up.copy is None:
            return
        given_up.copy.stop()
        wait([given_up.copy.done], _RECALL_S)
        if not given_up.over:
            return
        if not self._end(given_up):
            self._counters.host_recalls += 1
            self._queue.setdefault(given_up.loan.node, True)
            self._queue.move_to_end(given_up.loan.node, last=False)
            self._paused_until = self._device.launched + _PAUSE

    def collect(self) -> None:
        """Take over what has been copied, and begin what waits for its turn."""
        if self._current is not None and self._current.over:
            self._end(self._current)
        self._begin_next()

    def flush(self, salts: bytes) -> None:
        """Forget what waits of the salts that begin so, and stop what is copied of them."""
        if self._current is not None and self._current.salt.startswith(salts):
            self.recall()
        path_key = self._device.cache.tree.path_key
        for node in [node for node in self._queue if path_key(node)[0].startswith(salts)]:
            del self._queue[node]

    def close(self) -> None:
        """Stop the copy under way, and wait for its end."""
        if self._current is not None and self._current.copy is not None:
            self._current.copy.stop()
        self.route.close()

    def _begin_next(self) -> None:
        """Begin to copy the newest prefix that waits and that is not in the host's memory yet."""
        if self._device.launched < self._paused_until and not self._idle():
            return
        while self._queue and self._current is None:
            node, last = self._queue.popitem()
            if not node.attached or (self._device.stateful and node.snapshot is None):
                continue
            salt, key = self._device.cache.tree.path_key(node)
            if self._host.cache.match(key, node.depth, salt).depth >= node.depth:
                continue
            self._begin(node, key, salt)
            if self._current is None and self._crowded and self._fits(node.depth):
                self._queue[node] = last  # what is in use there comes back
                return

    @property
    def _crowded(self) -> bool:
        """True while the host's cache lends anything, or expects a prefix from files."""
        return bool(self.route.target.loans or len(self.route.target.reservations))

    def _fits(self, tokens: int) -> bool:
        """Return true if a prefix of so many tokens has room in the host's memory once nothing else
        is there."""
        return self._host.pages_for(tokens) <= self._host.total_pages

    def _begin(self, node: Node, key: bytes, salt: bytes) -> None:
        """Begin to copy `node`, if there is room for it beside what the host's cache lends."""
        each = PrefixCopy(key, salt, self.route.source.lend_node(node))
        if self.route.reserve(each, headroom=0):
            self._current = each
        else:
            self.route.source.give_back(each.loan)

    def _end(self, each: PrefixCopy) -> bool:
        """Take over what was copied, and give back what was lent. False: it is not whole."""
        self._current = None
        whole = self.route.end(each)
        if whole and each.reservation is not None:
            self._counters.host_snapshots_saved += self._device.stateful
            self._counters.host_pages_saved += len(each.reservation.owned)
        return whole
