"""The prefix cache: KV and recurrent state of token prefixes, kept for later requests.

Two match depths. The *compute hit* is the deepest node with a snapshot: where a prefill may
resume. The *transfer hit* is the deepest KV, with or without state: what a hand-off need not
send. Where KV goes deeper than state, the last grid depth of the difference is the branch point,
worth a snapshot the next time.

The cache holds ids only. It owns pages and slots (`Owner.CACHE`), and tells one hook what it
evicts. A prefix belongs to the cache salt that it was inserted with, and matches requests of that
salt alone. Eviction does not look at salts: the least recently used goes first, whosever it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from baton.core.cache_salt import SHARED
from baton.core.errors import InvariantError
from baton.engine.cache.prefix_node import Node, Snapshot
from baton.engine.cache.prefix_tree import PrefixTree
from baton.engine.cache.snapshot_log import SnapshotLog
from baton.engine.layout.token_key import TOKEN_BYTES


@dataclass(frozen=True)
class Match:
    """The cached part of a prompt.

    node: the deepest usable node (a root when there is none). depth: its tokens, the compute
    hit. pages: the pages of those tokens. kv_depth: tokens whose KV the cache holds, the transfer
    hit.
    """

    node: Node
    depth: int
    pages: tuple[int, ...]
    kv_depth: int

    @property
    def snapshot(self) -> int | None:
        return self.node.snapshot


@dataclass(frozen=True)
class Inserted:
    """The result of `PrefixCache.insert`.

    node: where the inserted run ends. pages: the pages that now stand for the run, the cache's
    own where it had them. spare_pages: the caller's pages that are not needed, still the
    caller's. spare_slots: snapshots whose depth had one already, still the caller's.
    """

    node: Node
    pages: tuple[int, ...]
    spare_pages: tuple[int, ...]
    spare_slots: tuple[int, ...]


class PrefixCache:
    """A radix tree of cached prefixes with locks and least-recently-used eviction.

    `stateful`: the model has recurrent layers, so only nodes with a snapshot can be resumed
    from. Otherwise every page boundary is usable.
    """

    def __init__(
        self,
        page_size: int,
        stateful: bool,
        on_evict: Callable[[list[int], list[int]], None],
    ) -> None:
        """on_evict(pages, slots) is called with what the cache no longer owns, to be freed."""
        self.page_size = page_size
        self.stateful = stateful
        self.tree = PrefixTree(page_size)
        self.snapshots_locked = 0
        self.log: SnapshotLog | None = None  # told of every snapshot; None: nobody has asked
        self._on_evict = on_evict
        self._clock = 0
        # A heap by last use. A node is in it at most once; its entry may be out of date.
        self._leaves: list[tuple[int, int, Node]] = []
        self._snapshots: OrderedDict[Node, None] = OrderedDict()  # least recently used first

    @property
    def nodes(self) -> int:
        return self.tree.nodes

    @property
    def evictable_pages(self) -> int:
        return self.tree.pages - self.tree.pages_locked

    @property
    def evictable_snapshots(self) -> int:
        return len(self._snapshots) - self.snapshots_locked

    # Matching ------------------------------------------------------------------------------

    def match(self, key: bytes, limit: int, salt: bytes = SHARED) -> Match:
        """Find the best match of `key` (see `token_key`), its compute hit at most `limit` tokens.

        `limit` is at most the prompt's length - 1: the last token is always computed. Refreshes
        the whole path's pages, and of the snapshots only the one that is used.
        """
        self._clock += 1
        node = usable = self.tree.root(salt)
        kv_depth = 0
        while (child := self.tree.child(node, key, kv_depth)) is not None:
            child.last_used = self._clock
            common = self.tree.common_pages(child, key, kv_depth)
            kv_depth += common * self.page_size
            if common < len(child.pages):
                if not self.stateful:
                    child = self.tree.split(child, common)
                    if child.depth <= limit:
                        usable = child
                node = child
                break
            node = child
            if node.depth <= limit and (not self.stateful or node.snapshot is not None):
                usable = node
        if not self.stateful and usable is not node and usable.depth < limit:
            usable = self.tree.cut_at(node, limit)
        if usable.snapshot is not None:
            self._snapshots.move_to_end(usable)
        return Match(usable, usable.depth, self.tree.path_pages(usable), kv_depth)

    def hold_kv(self, key: bytes, salt: bytes = SHARED) -> tuple[Node, tuple[int, ...]]:
        """Find and lock the deepest cached KV of `key`, with state or without.

        Returns the node that it ends at, split off where that lies inside of one, and its pages,
        locked until `unlock_pages`.
        """
        self._clock += 1
        node = self.tree.root(salt)
        while (child := self.tree.child(node, key, node.depth)) is not None:
            common = self.tree.common_pages(child, key, node.depth)
            node = child if common == len(child.pages) else self.tree.split(child, common)
            node.last_used = self._clock
        self.lock_pages(node)
        return node, self.tree.path_pages(node)

    def branch_point(self, match: Match, grid: int) -> int | None:
        """Return the deepest multiple of `grid` that KV reached and state did not, or None."""
        depth = match.kv_depth // grid * grid
        return depth if self.stateful and depth > match.depth else None

    # Locks ---------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Keep the path's pages, and this node's snapshot, until `unlock`."""
        self.lock_snapshot(node)
        self.lock_pages(node)

    def unlock(self, node: Node) -> None:
        """End one `lock` of this node."""
        self.unlock_snapshot(node)
        self.unlock_pages(node)

    def lock_snapshot(self, node: Node) -> None:
        """Keep this node's snapshot until `unlock_snapshot`. The caller has locked its pages."""
        node.snapshot_locks += 1
        self.snapshots_locked += node.snapshot is not None and node.snapshot_locks == 1

    def unlock_snapshot(self, node: Node) -> None:
        """End one `lock_snapshot`, once the forward that read it has run.

        The path's pages stay locked until `unlock_pages`.
        """
        if node.snapshot_locks < 1:
            raise InvariantError(f"the snapshot at {node.depth} tokens is not locked")
        node.snapshot_locks -= 1
        self.snapshots_locked -= node.snapshot is not None and node.snapshot_locks == 0

    def lock_pages(self, node: Node) -> None:
        """Keep the path's pages until `unlock_pages`."""
        self.tree.lock_path(node, 1)

    def unlock_pages(self, node: Node) -> None:
        """End one `lock_pages` of this node."""
        self.tree.lock_path(node, -1)
        self._offer(node)

    def move_lock(self, node: Node, below: Node) -> None:
        """Move one `lock_pages` of `node` to `below`, which is `node` or lies below it."""
        self.tree.lock_path(below, 1, above=node)

    # Insertion -----------------------------------------------------------------------------

    def insert(
        self,
        key: bytes,
        pages: Sequence[int],
        snapshots: Sequence[Snapshot] = (),
        below: Node | None = None,
        salt: bytes = SHARED,
    ) -> Inserted:
        """Take over `pages`, which hold the KV of `key` (one a whole page of it), and
        `snapshots`, at page boundaries inside it.

        below: the locked node whose run `key` goes on from; None: the root. A row that decodes
        gives some pages at a time, and looks at those alone however long it is.

        Where the cache has a page or a snapshot already, its own stays, and the caller keeps the
        spare one. A node without a snapshot that is given one can be resumed from again.
        """
        node, at, had = below or self.tree.root(salt), 0, []
        if node.parent is None:  # another root may have taken the place of this one meanwhile
            node = self.tree.root(node.key)
        base = node.depth
        waiting = self._checked(key, pages, snapshots, base)  # the shallowest last
        self._clock += 1
        node.last_used = self._clock
        spare_pages: list[int] = []
        spare_slots: list[int] = []
        self._accept_snapshot(node, waiting, spare_slots)
        while at < len(pages):
            run_end = (waiting[-1].depth - base) // self.page_size if waiting else len(pages)
            child = self.tree.child(node, key, at * self.page_size)
            if child is None:
                child = self.tree.append(node, key, pages, at, run_end)
            else:
                common = self.tree.common_pages(child, key, at * self.page_size)
                common = min(common, run_end - at)
                if common < len(child.pages):
                    child = self.tree.split(child, common)
                spare_pages += [p for p, q in zip(pages[at:], child.pages, strict=False) if p != q]
            had += child.pages
            child.last_used = self._clock
            at += len(child.pages)
            node = child
            self._accept_snapshot(node, waiting, spare_slots)
        self._offer(node)
        return Inserted(node, tuple(had), tuple(spare_pages), tuple(spare_slots))

    def _accept_snapshot(self, node: Node, waiting: list[Snapshot], spare_slots: list[int]) -> None:
        """Give `node` the last of the `waiting` snapshots if it is of its depth."""
        if waiting and node.depth == waiting[-1].depth:
            snapshot = waiting.pop()
            if node.snapshot is not None:
                spare_slots.append(snapshot.slot)
            else:
                self._take_snapshot(node, snapshot.slot, last=not snapshot.opportunistic)

    def _checked(
        self, key: bytes, pages: Sequence[int], snapshots: Sequence[Snapshot], base: int
    ) -> list[Snapshot]:
        """Return the snapshots, deepest first. Raises InvariantError where the parts disagree."""
        if len(key) != len(pages) * self.tree.page_bytes:
            raise InvariantError(
                f"a key of {len(key) // TOKEN_BYTES} tokens needs "
                f"{len(key) / self.tree.page_bytes:g} pages; got {len(pages)}"
            )
        deepest_first = sorted(snapshots, reverse=True)
        if deepest_first and (
            deepest_first[0].depth > base + len(key) // TOKEN_BYTES
            or deepest_first[-1].depth < max(1, base)
        ):
            depths = [snapshot.depth for snapshot in deepest_first]
            raise InvariantError(f"snapshots at {depths} lie outside the run")
        return deepest_first

    def tell(self, log: SnapshotLog) -> None:
        """Tell this log alone of the snapshots that are here, and of all changes from now on."""
        self.log = log
        for node in self._snapshots:
            log.made(node, *self.tree.path_key(node))

    def _take_snapshot(self, node: Node, slot: int, last: bool) -> None:
        node.snapshot = slot
        self._snapshots[node] = None
        self._snapshots.move_to_end(node, last)
        if self.log is not None:
            self.log.made(node, *self.tree.path_key(node))

    # Eviction ------------------------------------------------------------------------------

    def _offer(self, node: Node) -> None:
        """List `node` for eviction if it is an unlocked leaf."""
        if not node.evictable_leaf or node.offered:
            return
        if len(self._leaves) > 2 * self.nodes + 64:  # leaves that went with their snapshots
            self._leaves = [entry for entry in self._leaves if entry[2].attached]
            heapify(self._leaves)
        node.offered = True
        heappush(self._leaves, (node.last_used, id(node), node))

    def evict_pages(self, count: int) -> int:
        """Evict at least `count` pages, least recently used leaves first; return how many went."""
        freed = 0
        while freed < count and self._leaves:
            stamp, _, node = heappop(self._leaves)
            node.offered = False
            if not node.attached or not node.evictable_leaf:
                continue
            if stamp != node.last_used:
                self._offer(node)
                continue
            parent = node.parent
            freed += len(node.pages)
            self._drop([node])
            if parent is not None:
                # Insertions below a node do not touch the stamps of those above it.
                parent.last_used = max(parent.last_used, node.last_used)
                self._offer(parent)
        return freed

    def evict_snapshots(self, count: int) -> int:
        """Evict `count` snapshots, least recently used first; return how many went.

        An inner node keeps its KV. A leaf goes with its KV, and so do the ancestors that are left
        without a snapshot and without a child.
        """
        freed = 0
        while freed < count:
            node = next((n for n in self._snapshots if not n.snapshot_locks), None)
            if node is None:
                break
            freed += 1
            if not node.evictable_leaf:
                self._on_evict([], [self._lose_snapshot(node)])
                continue
            dropped, above = [node], node.parent
            while above is not None and _dead_without(above, dropped[-1]):
                dropped.append(above)
                above = above.parent
            self._drop(dropped)
            if above is not None:
                above.last_used = max(above.last_used, node.last_used)
                self._offer(above)
        return freed

    def flush(self, salts: bytes = b"") -> None:
        """Evict everything that is not locked, or that of salts that begin so."""
        if salts:
            for node in self.tree.below(salts):
                if node.evictable_leaf:
                    self._drop([node])
            return
        self.evict_snapshots(len(self._snapshots))
        self.evict_pages(self.tree.pages)

    def _drop(self, chain: list[Node]) -> None:
        """Free a leaf and then its ancestors, as listed."""
        pages: list[int] = []
        slots: list[int] = []
        for node in chain:
            self.tree.remove(node)
            pages += node.pages
            if node.snapshot is not None:
                slots.append(self._lose_snapshot(node))
        self._on_evict(pages, slots)

    def _lose_snapshot(self, node: Node) -> int:
        slot = node.snapshot
        if slot is None:
            raise InvariantError(f"the node at {node.depth} tokens has no snapshot to evict")
        node.snapshot = None
        del self._snapshots[node]
        if self.log is not None:
            self.log.evicted(node)
        return slot

    # Audit ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the tree, its locks and the lists for eviction. Raises InvariantError."""
        self.tree.check()
        listed = {entry[2] for entry in self._leaves}
        if len(listed) != len(self._leaves) or not all(node.offered for node in listed):
            raise InvariantError("the list of evictable leaves has a duplicate or an unmarked node")
        locked = sum(n.snapshot_locks > 0 for n in self._snapshots)
        if self.snapshots_locked != locked:
            raise InvariantError(
                f"{locked} locked snapshots in the tree, {self.snapshots_locked} counted"
            )
        held = 0
        for node in self.tree:
            held += node.snapshot is not None
            if node.evictable_leaf and not node.offered:
                raise InvariantError(
                    f"the leaf at {node.depth} tokens is not in the list for eviction"
                )
            if (node.snapshot is not None) != (node in self._snapshots):
                raise InvariantError(f"the snapshot at {node.depth} tokens is not listed")
        if held != len(self._snapshots):
            raise InvariantError(f"{held} snapshots in the tree, {len(self._snapshots)} listed")


def _dead_without(node: Node, child: Node) -> bool:
    """Return true where `node` would be an unlocked leaf without a snapshot, but for `child`."""
    return (
        node.parent is not None
        and node.snapshot is None
        and not node.page_locks
        and len(node.children) == 1
        and child.parent is node
    )
