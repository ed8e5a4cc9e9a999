"""The radix tree of the prefix cache: token runs, the pages below them, and locks on paths.

Token runs are int32 bytes (see `token_key`). A child is looked up by the run of its first page. The
tree holds ids only; which of them may be evicted, and when, is decided by `PrefixCache`. Each cache
salt has a root of its own, so no walk leads from one salt's prefixes to another's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from baton.core.cache_salt import SHARED
from baton.core.errors import InvariantError
from baton.engine.cache.prefix_node import Node
from baton.engine.layout.token_key import TOKEN_BYTES


class PrefixTree:
    """Nodes below the roots, and how many nodes and pages there are and how many pages are locked.

    roots: by cache salt; SHARED's always, another salt's while it has a child.
    """

    def __init__(self, page_size: int) -> None:
        """page_size: tokens a page."""
        self.page_size = page_size
        self.page_bytes = page_size * TOKEN_BYTES
        self.roots = {SHARED: Node(None, SHARED, [], 0)}
        self.nodes = 0  # without the roots
        self.pages = 0
        self.pages_locked = 0

    def __iter__(self) -> Iterator[Node]:
        """Yield every node, the roots first."""
        todo = list(self.roots.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            yield node

    # Walking -------------------------------------------------------------------------------

    def root(self, salt: bytes) -> Node:
        """Return the root of `salt`. One that was not in the tree joins it with its first child."""
        return self.roots.get(salt) or Node(None, salt, [], 0)

    def holds(self, salts: bytes) -> bool:
        """Return true if there is a prefix of a salt that begins so."""
        found = (root for salt, root in self.roots.items() if salt.startswith(salts))
        return any(root.children for root in found)

    def below(self, salts: bytes) -> list[Node]:
        """Return the nodes of the salts that begin so, each behind all below it."""
        found, todo = [], [root for salt, root in self.roots.items() if salt.startswith(salts)]
        while todo:
            node = todo.pop()
            todo += node.children.values()
            found += [node] if node.attached else []
        return found[::-1]

    def child(self, node: Node, key: bytes, depth: int) -> Node | None:
        """Return the child of `node` whose first page holds the tokens of `key` after `depth`."""
        start = depth * TOKEN_BYTES
        return node.children.get(key[start : start + self.page_bytes])

    def common_pages(self, node: Node, key: bytes, depth: int) -> int:
        """Count the whole pages of `node` that agree with `key` from `depth` tokens on.

        The first page is taken to agree: `child` has looked it up.
        """
        start = depth * TOKEN_BYTES
        theirs = key[start : start + len(node.key)]
        if theirs == node.key:
            return len(node.pages)
        step = self.page_bytes
        low, high = 1, min(len(theirs) // step, len(node.pages))
        while low < high:
            middle = (low + high + 1) // 2
            if theirs[: middle * step] == node.key[: middle * step]:
                low = middle
            else:
                high = middle - 1
        return low

    def path_pages(self, node: Node) -> tuple[int, ...]:
        """Return the pages from the root to the end of `node`, in token order."""
        runs: list[list[int]] = []
        while node.parent is not None:
            runs.append(node.pages)
            node = node.parent
        return tuple(page for run in reversed(runs) for page in run)

    def path_key(self, node: Node) -> tuple[bytes, bytes]:
        """Return the cache salt of `node`'s root, and the token ids from there to its end."""
        runs: list[bytes] = []
        while node.parent is not None:
            runs.append(node.key)
            node = node.parent
        return node.key, b"".join(reversed(runs))

    # Changing ------------------------------------------------------------------------------

    def append(self, parent: Node, key: bytes, pages: Sequence[int], at: int, end: int) -> Node:
        """Add a child of `parent` that holds pages [at, end) of `pages` and their run of `key`."""
        run = key[at * self.page_bytes : end * self.page_bytes]
        child = Node(parent, run, list(pages[at:end]), parent.depth + (end - at) * self.page_size)
        parent.children[run[: self.page_bytes]] = child
        if parent.parent is None:
            self.roots[parent.key] = parent
        self.pages += len(child.pages)
        self.nodes += 1
        return child

    def split(self, node: Node, keep: int) -> Node:
        """Cut `node` after `keep` pages and return the new upper part, which has no snapshot.

        `node` keeps its identity as the lower part: locks and requests that point at it hold.
        """
        parent = node.parent
        if parent is None or not 0 < keep < len(node.pages):
            raise InvariantError(f"cannot split a run of {len(node.pages)} pages after {keep}")
        cut = keep * self.page_bytes
        upper = Node(
            parent, node.key[:cut], node.pages[:keep], parent.depth + keep * self.page_size
        )
        upper.page_locks = node.page_locks
        upper.last_used = node.last_used
        parent.children[upper.key[: self.page_bytes]] = upper
        node.key, node.pages, node.parent = node.key[cut:], node.pages[keep:], upper
        upper.children[node.key[: self.page_bytes]] = node
        self.nodes += 1
        return upper

    def cut_at(self, node: Node, limit: int) -> Node:
        """Return the ancestor of `node` that ends at the last page boundary within `limit` tokens.

        Where that boundary lies inside a node, the node is split there.
        """
        while node.parent is not None and node.parent.depth > limit:
            node = node.parent
        start = node.parent.depth if node.parent is not None else 0
        keep = (limit - start) // self.page_size
        if keep <= 0:
            return node.parent or node
        return self.split(node, keep) if keep < len(node.pages) else node

    def remove(self, node: Node) -> None:
        """Take the leaf `node` out. Raises InvariantError for the root or an inner node."""
        parent = node.parent
        if parent is None or node.children:
            raise InvariantError(f"the node at {node.depth} tokens cannot be evicted")
        del parent.children[node.key[: self.page_bytes]]
        if parent.parent is None and parent.key and not parent.children:
            del self.roots[parent.key]
        node.parent = None
        self.pages -= len(node.pages)
        self.nodes -= 1

    def lock_path(self, node: Node, change: int, above: Node | None = None) -> None:
        """Add `change` (1 or -1) to the page locks of `node` and of its ancestors below `above`."""
        walk: Node | None = node
        while walk is not None and walk is not above and walk.parent is not None:
            before = walk.page_locks
            walk.page_locks = before + change
            if walk.page_locks < 0:
                raise InvariantError(f"the pages up to {walk.depth} tokens are not locked")
            if before == 0 or walk.page_locks == 0:
                self.pages_locked += change * len(walk.pages)
            walk = walk.parent

    # Audit ---------------------------------------------------------------------------------

    def owned(self) -> tuple[list[int], list[int]]:
        """Return every page and every snapshot slot in the tree."""
        pages = [page for node in self for page in node.pages]
        slots = [node.snapshot for node in self if node.snapshot is not None]
        return pages, slots

    def lock_findings(self, page_holders: Sequence[Node], resuming: Sequence[Node]) -> list[str]:
        """Describe the locks that do not match these holders, which hold one lock an entry.

        page_holders: nodes whose paths' pages are locked. resuming: nodes whose snapshot is.
        """
        paths: Counter[Node] = Counter()
        for holder in page_holders:
            walk: Node | None = holder
            while walk is not None and walk.parent is not None:
                paths[walk] += 1
                walk = walk.parent
        snapshots = Counter(resuming)
        return [
            f"{what} of the node at {node.depth} tokens: {held} locks, expected {expected}"
            for node in self
            for what, held, expected in (
                ("pages", node.page_locks, paths[node]),
                ("snapshot", node.snapshot_locks, snapshots[node]),
            )
            if held != expected
        ]

    def check(self) -> None:
        """Compare the nodes with the tree's counts. Raises InvariantError."""
        for what, ids in zip(("page", "slot"), self.owned(), strict=True):
            if len(set(ids)) != len(ids):
                raise InvariantError(f"a {what} is in the cache twice: {sorted(ids)}")
        pages = locked = 0
        for node in self:
            self._check_node(node)
            pages += len(node.pages)
            locked += len(node.pages) if node.page_locks else 0
        if pages != self.pages:
            raise InvariantError(f"{pages} pages in the tree, {self.pages} counted")
        if locked != self.pages_locked:
            raise InvariantError(f"{locked} pages locked in the tree, {self.pages_locked} counted")

    def _check_node(self, node: Node) -> None:
        if node.parent is None:
            self._check_root(node)
            return
        if len(node.key) != len(node.pages) * self.page_bytes:
            raise InvariantError(f"the node at {node.depth} tokens: key and pages differ in length")
        if node.depth != node.parent.depth + len(node.pages) * self.page_size:
            raise InvariantError(f"the node at {node.depth} tokens has a wrong depth")
        below = sum(child.page_locks for child in node.children.values())
        if node.page_locks < below or node.page_locks < node.snapshot_locks:
            raise InvariantError(
                f"the node at {node.depth} tokens has {node.page_locks} page locks; expected at "
                f"least {max(below, node.snapshot_locks)}, for its children and its snapshot"
            )

    def _check_root(self, root: Node) -> None:
        if self.roots.get(root.key) is not root or root.pages:
            raise InvariantError("a root stands under another salt than its own, or has pages")
        if root.key and not root.children:
            raise InvariantError("a salt without any prefix has kept its root")
