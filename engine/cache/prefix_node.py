"""One run of pages in the prefix cache."""

from typing import NamedTuple


class Snapshot(NamedTuple):
    """A recurrent state for the cache: that after `depth` tokens. A step writes it, and then the
    cache owns it."""

    depth: int  # absolute tokens
    slot: int  # state slot; owner TRACK, and no other step writes it, until the cache's
    opportunistic: bool = False  # the first to be evicted, until a match uses it


class Node:
    """A page-aligned run of tokens below `parent`, the pages that hold its KV, and perhaps the
    recurrent state after its last token.

    key: the run's token ids as int32 bytes; of a root, its cache salt. pages: one id a page of the
    run. depth: tokens from the root to the run's end. snapshot: a state slot, valid after exactly
    `depth` tokens.
    A node without a snapshot is a tombstone where its snapshot was evicted, or was inserted
    without one.
    """

    __slots__ = (
        "children",
        "depth",
        "key",
        "last_used",
        "offered",
        "page_locks",
        "pages",
        "parent",
        "snapshot",
        "snapshot_locks",
    )

    def __init__(self, parent: "Node | None", key: bytes, pages: list[int], depth: int) -> None:
        self.parent = parent
        self.key = key
        self.pages = pages
        self.depth = depth
        self.children: dict[bytes, Node] = {}
        self.snapshot: int | None = None
        self.page_locks = 0  # locked requests at or below this node
        self.snapshot_locks = 0  # locked requests that resume from this node
        self.last_used = 0
        self.offered = False  # in the cache's list of leaves to evict

    @property
    def attached(self) -> bool:
        """False for the root, and for a node that was evicted."""
        return self.parent is not None

    @property
    def evictable_leaf(self) -> bool:
        """True for a leaf that nobody has locked."""
        return (
            self.parent is not None
            and not self.children
            and not self.page_locks
            and not self.snapshot_locks
        )
