"""The prefix cache: a radix tree over page-sized token runs, with recurrent state at some nodes.

Two match depths. The *compute hit* is the deepest node with a snapshot: where a prefill may
resume. The *transfer hit* is the deepest KV, with or without state: what a hand-off need not
send. Where KV goes deeper than state, the last grid depth of the difference is the branch point,
worth a snapshot the next time.

Ids only: the cache owns pages and slots (`Owner.CACHE`), and tells one hook what it lets go.
Token runs are int32 bytes, so that an edge is compared by one memcmp and hashed by page.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from baton.engine.errors import InvariantError
from baton.engine.prefix_node import Node

TOKEN_BYTES = 4


def token_key(tokens: Sequence[int]) -> bytes:
    """Token ids as the int32 bytes that the cache's keys are made of."""
    return array("i", tokens).tobytes()


@dataclass(frozen=True)
class Match:
    """node: the deepest usable node (the root when there is none). depth: its tokens, the compute
    hit. pages: the pages of those tokens. kv_depth: tokens whose KV the cache holds, the transfer
    hit, and kv_node the node that it ends at or inside of."""

    node: Node
    depth: int
    pages: tuple[int, ...]
    kv_node: Node
    kv_depth: int

    @property
    def snapshot(self) -> int | None:
        return self.node.snapshot


@dataclass(frozen=True)
class Inserted:
    """node: where the inserted run ends. pages: the pages that now stand for the run, the cache's
    own where it had them. spare_pages: the caller's pages that are not needed, still the
    caller's. spare_slots: snapshots whose depth had one already, still the caller's."""

    node: Node
    pages: tuple[int, ...]
    spare_pages: tuple[int, ...]
    spare_slots: tuple[int, ...]


class PrefixCache:
    """`stateful`: the model has recurrent layers, so only nodes with a snapshot can be resumed
    from. Otherwise every page boundary is usable.

    on_evict(pages, slots) is called with what the cache no longer owns, to be freed.
    """

    def __init__(
        self,
        page_size: int,
        stateful: bool,
        on_evict: Callable[[list[int], list[int]], None],
    ) -> None:
        self.page_size = page_size
        self.stateful = stateful
        self._on_evict = on_evict
        self._page_bytes = page_size * TOKEN_BYTES
        self._clock = 0
        self._reset()

    def _reset(self) -> None:
        self.root = Node(None, b"", [], 0)
        self.pages_held = 0
        self.pages_locked = 0
        self.snapshots_locked = 0
        self.nodes = 0
        # Heap by last use. A node is in it at most once; entries may be stale.
        self._leaves: list[tuple[int, int, Node]] = []
        self._snapshots: OrderedDict[Node, None] = OrderedDict()  # least recently used first

    @property
    def evictable_pages(self) -> int:
        return self.pages_held - self.pages_locked

    @property
    def evictable_snapshots(self) -> int:
        return len(self._snapshots) - self.snapshots_locked

    # Matching ------------------------------------------------------------------------------

    def match(self, key: bytes, limit: int) -> Match:
        """The best match of `key` (see `token_key`) whose compute hit is at most `limit` tokens.

        `limit` is at most the prompt's length - 1: the last token is always computed. Refreshes
        the whole path's pages, and of the snapshots only the one that is used.
        """
        self._clock += 1
        node, usable, pages = self.root, self.root, []
        kv_depth = 0
        while True:
            child = node.children.get(key[kv_depth * TOKEN_BYTES :][: self._page_bytes])
            if child is None:
                break
            child.last_used = self._clock
            common = self._common_pages(child, key, kv_depth)
            kv_depth += common * self.page_size
            if common < len(child.pages):
                if not self.stateful:
                    child = self._split(child, common)
                    if child.depth <= limit:
                        usable = child
                node = child
                break
            node = child
            if node.depth <= limit and (not self.stateful or node.snapshot is not None):
                usable = node
        if not self.stateful and usable is not node and usable.depth < limit:
            usable = self._cut_at(node, limit)
        if usable.snapshot is not None:
            self._snapshots.move_to_end(usable)
        walk = usable
        while walk.parent is not None:
            pages.append(walk.pages)
            walk = walk.parent
        path = tuple(page for run in reversed(pages) for page in run)
        return Match(usable, usable.depth, path, node, kv_depth)

    def hold_kv(self, key: bytes) -> tuple[Node, tuple[int, ...]]:
        """The deepest KV of `key` that is here, with state or without: the node that it ends at,
        split off where that lies inside of one, and its pages, locked until `unlock_pages`."""
        self._clock += 1
        node, pages, step = self.root, [], self._page_bytes
        while child := node.children.get(key[(at := node.depth * TOKEN_BYTES) : at + step]):
            common = self._common_pages(child, key, node.depth)
            node = child if common == len(child.pages) else self._split(child, common)
            node.last_used = self._clock
            pages += node.pages
        self.lock_pages(node)
        return node, tuple(pages)

    def _cut_at(self, node: Node, limit: int) -> Node:
        """The ancestor of `node`, or a part of it split off, that ends at the last page boundary
        at or below `limit` tokens."""
        while node.parent is not None and node.parent.depth > limit:
            node = node.parent
        start = node.parent.depth if node.parent is not None else 0
        keep = (limit - start) // self.page_size
        if keep <= 0:
            return node.parent or node
        return self._split(node, keep) if keep < len(node.pages) else node

    def _common_pages(self, node: Node, key: bytes, depth: int) -> int:
        """How many whole pages of `node` agree with `key` from `depth` tokens on."""
        start = depth * TOKEN_BYTES
        theirs = key[start : start + len(node.key)]
        if theirs == node.key:
            return len(node.pages)
        step = self._page_bytes
        low, high = 1, min(len(theirs) // step, len(node.pages))  # the first page was looked up
        while low < high:
            middle = (low + high + 1) // 2
            if theirs[: middle * step] == node.key[: middle * step]:
                low = middle
            else:
                high = middle - 1
        return low

    def branch_point(self, match: Match, grid: int) -> int | None:
        """The deepest multiple of `grid` that KV reached and state did not, or None."""
        depth = match.kv_depth // grid * grid
        return depth if self.stateful and depth > match.depth else None

    # Locks ---------------------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Keep the path's pages, and this node's snapshot, until `unlock`."""
        node.snapshot_locks += 1
        self.snapshots_locked += node.snapshot is not None and node.snapshot_locks == 1
        self._lock_path(node, 1)

    def unlock(self, node: Node) -> None:
        """End one `lock` of this node."""
        self.unlock_snapshot(node)
        self.unlock_pages(node)

    def unlock_snapshot(self, node: Node) -> None:
        """The forward that read the snapshot has run: keep the path's pages only. End what is
        left with `unlock_pages`."""
        if node.snapshot_locks < 1:
            raise InvariantError(f"the snapshot at {node.depth} tokens is not locked")
        node.snapshot_locks -= 1
        self.snapshots_locked -= node.snapshot is not None and node.snapshot_locks == 0

    def lock_pages(self, node: Node) -> None:
        """Keep the path's pages until `unlock_pages`."""
        self._lock_path(node, 1)

    def unlock_pages(self, node: Node) -> None:
        """End one `lock_pages` of this node."""
        self._lock_path(node, -1)
        self._offer(node)

    def _lock_path(self, node: Node, change: int) -> None:
        walk: Node | None = node
        while walk is not None and walk.parent is not None:
            before = walk.page_locks
            walk.page_locks = before + change
            if walk.page_locks < 0:
                raise InvariantError(f"the pages up to {walk.depth} tokens are not locked")
            if before == 0 or walk.page_locks == 0:
                self.pages_locked += change * len(walk.pages)
            walk = walk.parent

    # Insertion -----------------------------------------------------------------------------

    def insert(
        self,
        key: bytes,
        pages: Sequence[int],
        snapshots: Sequence[tuple[int, int]] = (),
        hopeful: Collection[int] = (),
    ) -> Inserted:
        """Take over `pages`, which hold the KV of `key` (one a whole page of it), and
        `snapshots`, pairs of (depth, slot) at page boundaries inside it.

        Where the cache has a page or a snapshot already, its own stays, and the caller keeps the
        spare one. A tombstone that gets a snapshot lives again. Snapshots at `hopeful` depths are
        the first to be evicted, until a match uses them.
        """
        if len(key) != len(pages) * self._page_bytes:
            raise InvariantError(
                f"a key of {len(key) // TOKEN_BYTES} tokens needs "
                f"{len(key) / self._page_bytes:g} pages; got {len(pages)}"
            )
        self._clock += 1
        node, at, had = self.root, 0, []
        spare_pages: list[int] = []
        spare_slots: list[int] = []
        waiting = sorted(snapshots, reverse=True)  # the shallowest last
        if waiting and (waiting[0][0] > len(key) // TOKEN_BYTES or waiting[-1][0] < 1):
            raise InvariantError(f"snapshots at {waiting} lie outside the run")
        while at < len(pages):
            run_end = waiting[-1][0] // self.page_size if waiting else len(pages)
            child = node.children.get(key[at * self._page_bytes :][: self._page_bytes])
            if child is None:
                child = self._append(node, key, pages, at, run_end)
                had += child.pages
            else:
                common = min(self._common_pages(child, key, at * self.page_size), run_end - at)
                if common < len(child.pages):
                    child = self._split(child, common)
                spare_pages += [p for p, q in zip(pages[at:], child.pages, strict=False) if p != q]
                had += child.pages
            child.last_used = self._clock
            at += len(child.pages)
            node = child
            if waiting and node.depth == waiting[-1][0]:
                depth, slot = waiting.pop()
                if node.snapshot is not None:
                    spare_slots.append(slot)
                else:
                    self._take_snapshot(node, slot, last=depth not in hopeful)
        self._offer(node)
        return Inserted(node, tuple(had), tuple(spare_pages), tuple(spare_slots))

    def _append(self, parent: Node, key: bytes, pages: Sequence[int], at: int, end: int) -> Node:
        run = key[at * self._page_bytes : end * self._page_bytes]
        child = Node(parent, run, list(pages[at:end]), end * self.page_size)
        parent.children[run[: self._page_bytes]] = child
        self.pages_held += len(child.pages)
        self.nodes += 1
        return child

    def _take_snapshot(self, node: Node, slot: int, last: bool) -> None:
        node.snapshot = slot
        self._snapshots[node] = None
        self._snapshots.move_to_end(node, last)

    def _split(self, node: Node, keep: int) -> Node:
        """Cut `node` after `keep` pages; returns the new upper part, which has no snapshot.

        `node` keeps its identity as the lower part: locks and requests that point at it hold.
        """
        parent = node.parent
        if parent is None or not 0 < keep < len(node.pages):
            raise InvariantError(f"cannot split a run of {len(node.pages)} pages after {keep}")
        cut = keep * self._page_bytes
        upper = Node(
            parent, node.key[:cut], node.pages[:keep], parent.depth + keep * self.page_size
        )
        upper.page_locks = node.page_locks
        upper.last_used = node.last_used
        parent.children[upper.key[: self._page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[keep:], upper
        upper.children[node.key[: self._page_bytes]] = node
        self.nodes += 1
        return upper

    # Eviction ------------------------------------------------------------------------------

    def _offer(self, node: Node) -> None:
        if not node.evictable_leaf or node.offered:
            return
        if len(self._leaves) > 2 * self.nodes + 64:  # leaves that went with their snapshots
            self._leaves = [entry for entry in self._leaves if self._attached(entry[2])]
            heapify(self._leaves)
        node.offered = True
        heappush(self._leaves, (node.last_used, id(node), node))

    def evict_pages(self, count: int) -> int:
        """Let at least `count` pages go, least recently used leaves first; how many went."""
        freed = 0
        while freed < count and self._leaves:
            stamp, _, node = heappop(self._leaves)
            node.offered = False
            if not self._attached(node) or not node.evictable_leaf:
                continue
            if stamp != node.last_used:
                self._offer(node)
                continue
            parent = node.parent
            freed += len(node.pages)
            self._drop([node])
            if parent is not None:
                self._offer(parent)
        return freed

    def evict_snapshots(self, count: int) -> int:
        """Let `count` snapshots go, least recently used first; how many went.

        An inner node becomes a tombstone, its KV stays. A leaf goes with its KV, and so do the
        ancestors that are left without a snapshot and without a child.
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
            while above is not None and self._dead_without(above, dropped[-1]):
                dropped.append(above)
                above = above.parent
            self._drop(dropped)
            if above is not None:
                self._offer(above)
        return freed

    def _dead_without(self, node: Node, child: Node) -> bool:
        """`node` would be an unlocked leaf without a snapshot, were it not for `child`."""
        return (
            node.parent is not None
            and node.snapshot is None
            and not node.page_locks
            and len(node.children) == 1
            and child.parent is node
        )

    def _drop(self, chain: list[Node]) -> None:
        """Free a leaf and then its ancestors, as listed."""
        pages: list[int] = []
        slots: list[int] = []
        for node in chain:
            parent = node.parent
            if parent is None or node.children:
                raise InvariantError(f"the node at {node.depth} tokens cannot be evicted")
            del parent.children[node.key[: self._page_bytes]]
            if node.snapshot is not None:
                slots.append(self._lose_snapshot(node))
            pages += node.pages
            node.parent = None
        self.pages_held -= len(pages)
        self.nodes -= len(chain)
        self._on_evict(pages, slots)

    def flush(self) -> None:
        """Let everything go that is not locked."""
        self.evict_snapshots(len(self._snapshots))
        self.evict_pages(self.pages_held)

    def _attached(self, node: Node) -> bool:
        return node.parent is not None

    def _lose_snapshot(self, node: Node) -> int:
        slot = node.snapshot
        if slot is None:
            raise InvariantError(f"the node at {node.depth} tokens has no snapshot to lose")
        node.snapshot = None
        del self._snapshots[node]
        return slot

    # Audit ---------------------------------------------------------------------------------

    def owned(self) -> tuple[list[int], list[int]]:
        """Every page and every snapshot slot in the tree."""
        pages: list[int] = []
        slots: list[int] = []
        todo = [self.root]
        while todo:
            node = todo.pop()
            pages += node.pages
            slots += [node.snapshot] if node.snapshot is not None else []
            todo += node.children.values()
        return pages, slots

    def lock_findings(self, page_holders: Sequence[Node], resuming: Sequence[Node]) -> list[str]:
        """Locks that are not those of these nodes' holders, one entry of either list a lock."""
        paths: Counter[Node] = Counter()
        for holder in page_holders:
            walk: Node | None = holder
            while walk is not None and walk.parent is not None:
                paths[walk] += 1
                walk = walk.parent
        snapshots = Counter(resuming)
        findings: list[str] = []
        todo = [self.root]
        while todo:
            node = todo.pop()
            todo += node.children.values()
            for what, held, expected in (
                ("pages", node.page_locks, paths[node]),
                ("snapshot", node.snapshot_locks, snapshots[node]),
            ):
                if held != expected:
                    findings.append(
                        f"the {what} at {node.depth} tokens are locked {held} times by {expected}"
                    )
        return findings

    def check(self) -> None:
        """The tree, its counts, its locks and its lists agree. Raises InvariantError."""
        pages, slots = self.owned()
        for what, ids in (("page", pages), ("slot", slots)):
            if len(set(ids)) != len(ids):
                raise InvariantError(f"a {what} is in the cache twice: {sorted(ids)}")
        listed = {entry[2] for entry in self._leaves}
        if len(listed) != len(self._leaves) or not all(node.offered for node in listed):
            raise InvariantError("the list of leaves has one twice, or one that is not marked")
        if len(pages) != self.pages_held:
            raise InvariantError(f"{len(pages)} pages in the tree, {self.pages_held} counted")
        locked, todo = 0, [self.root]
        while todo:
            node = todo.pop()
            todo += node.children.values()
            self._check_node(node)
            locked += len(node.pages) if node.page_locks else 0
        if locked != self.pages_locked:
            raise InvariantError(f"{locked} pages locked in the tree, {self.pages_locked} counted")
        if self.snapshots_locked != sum(n.snapshot_locks > 0 for n in self._snapshots):
            raise InvariantError(f"{self.snapshots_locked} snapshots are not what is locked")
        if len(slots) != len(self._snapshots):
            raise InvariantError(
                f"{len(slots)} snapshots in the tree, {len(self._snapshots)} listed"
            )

    def _check_node(self, node: Node) -> None:
        if len(node.key) != len(node.pages) * self._page_bytes:
            raise InvariantError(f"the node at {node.depth} tokens: key and pages differ in length")
        if node.parent is not None:
            if node.depth != node.parent.depth + len(node.pages) * self.page_size:
                raise InvariantError(f"the node at {node.depth} tokens has a wrong depth")
            below = sum(child.page_locks for child in node.children.values())
            if node.page_locks < below or node.page_locks < node.snapshot_locks:
                raise InvariantError(f"the node at {node.depth} tokens is locked too little")
            if node.evictable_leaf and not node.offered:
                raise InvariantError(f"the leaf at {node.depth} tokens can never be evicted")
        if (node.snapshot is not None) != (node in self._snapshots):
            raise InvariantError(f"the snapshot at {node.depth} tokens is not listed")
