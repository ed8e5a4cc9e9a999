"""The log of what became of the prefix cache's snapshots since somebody last asked."""

from baton.engine.cache.prefix_node import Node
from baton.text.prefix_digest import PrefixDigest

EVICTED = 0
"""The depth of a snapshot that the cache has no longer."""


class SnapshotLog:
    """The snapshots that were made and evicted since the last `take`, by digest.

    Of a snapshot that came and went meanwhile, and of one that went and came again, only the last
    is told. Called on the engine's thread alone.
    """

    def __init__(self) -> None:
        self._changes: dict[int, int] = {}
        self._digests: dict[Node, int] = {}  # of the snapshots that the cache has

    def made(self, node: Node, salt: bytes, tokens: bytes) -> None:
        """Note a new snapshot. tokens: all tokens before it (see `token_key`), under `salt`."""
        digest = PrefixDigest(salt).add(tokens)
        self._digests[node] = digest
        self._changes[digest] = node.depth

    def evicted(self, node: Node) -> None:
        self._changes[self._digests.pop(node)] = EVICTED

    def take(self) -> dict[int, int]:
        """Return digest to depth of each snapshot that changed, `EVICTED` for those that went."""
        changes, self._changes = self._changes, {}
        return changes
