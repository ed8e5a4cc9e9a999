"""The memories behind a worker's pools in a replay: the host's, and files.

Each copy is over at once, and always sooner than computing. What is copied, when, and what gives
way are the engine's rules.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from os import devnull
from pathlib import Path

from baton.bench.prefix.budget import CacheBudget, PrefixBytes
from baton.bench.prefix.cache_memory import CacheMemory
from baton.core.cache_salt import SHARED
from baton.engine.cache.prefix_node import Node
from baton.engine.layout.token_key import TOKEN_BYTES
from baton.engine.request.request import Promotion
from baton.engine.tiers.file_folder import FileFolder
from baton.engine.tiers.file_names import FileNames
from baton.engine.tiers.file_tier import MOST_HITS
from baton.engine.tiers.prefix_file import file_bytes

_NOWHERE = Path(devnull) / "prefixes"
"""No file can be there: the folder's list of them is all that a replay has."""


@dataclass(frozen=True)
class TierBudget:
    """The sizes of the memories behind a worker's pools."""

    host: CacheBudget
    file_bytes: int = 0  # 0: no files


class FileList:
    """The names and sizes of files, without files."""

    def __init__(self, nbytes: int, page_size: int, sizes: PrefixBytes) -> None:
        self._sizes, self._page_size = sizes, page_size
        self._names = FileNames(b"replay", "replay", page_size)
        ticks = count()
        self._folder = FileFolder(_NOWHERE, nbytes, float("inf"), lambda: float(next(ticks)))

    def longest(self, key: bytes, above: int) -> int:
        """Return the tokens of the longest prefix of `key` that files hold; 0 where they hold no
        more than `above` tokens. Its files are used by this."""
        names = self._names.along(key, SHARED)
        chain = self._folder.chain(self._names.folder(), names, above // self._page_size)
        self._folder.use(chain)
        return chain[-1].end * self._page_size if chain else 0

    def write(self, key: bytes) -> None:
        """Write the state after `key`, and the pages that no file has."""
        folder, names = self._names.folder(), self._names.along(key, SHARED)
        chain = self._folder.chain(folder, names, above=0)
        self._folder.use(chain)
        first = chain[-1].end if chain else 0
        blocks = [self._sizes.state] + [self._sizes.kv * self._page_size] * (len(names) - first)
        if first < len(names) and self._folder.make_room(nbytes := file_bytes(blocks)):
            path = self._folder.path(folder, names[-1], first)
            self._folder.add(path, first, nbytes)


class Tiers:
    """The memories behind a worker's pools."""

    def __init__(self, pools: CacheMemory, host: CacheMemory, files: FileList | None) -> None:
        self._pools, self._host, self._files = pools, host, files
        self._hits: OrderedDict[Node, None] = OrderedDict()

    @classmethod
    def behind(cls, pools: CacheMemory, budget: TierBudget, sizes: PrefixBytes) -> "Tiers":
        """Make them, empty."""
        host = CacheMemory(pools.page_size, budget.host, sizes)
        stored = budget.file_bytes
        files = FileList(stored, pools.page_size, sizes) if stored else None
        return cls(pools, host, files)

    def promote(self, key: bytes, limit: int) -> Promotion:
        """Bring the longest prefix of a prompt, of at most `limit` tokens, into the pools."""
        here = self._pools.cache.match(key, limit).depth
        there = self._host.cache.match(key, limit).depth
        promotion = Promotion(here, there, unfiled=max(here, there))
        if self._files is not None:
            whole = limit // self._pools.page_size * self._pools.page_size
            found = self._files.longest(key[: whole * TOKEN_BYTES], promotion.unfiled)
            if found and self._host.copy(key[: found * TOKEN_BYTES]):
                promotion.depth = found
        if promotion.depth > here:
            self._pools.copy(key[: promotion.depth * TOKEN_BYTES])
        return promotion

    def hit(self, node: Node) -> None:
        """Note that a prompt resumes from `node` of the pools: the second time, files take it."""
        if node not in self._hits:
            self._hits[node] = None
            if len(self._hits) > MOST_HITS:
                self._hits.popitem(last=False)
        else:
            del self._hits[node]
            self._write(self._pools.cache.tree.path_key(node)[1])

    def kept(self, key: bytes, depths: Sequence[int]) -> None:
        """Copy the states that the pools keep at rising depths of `key`; files take the deepest."""
        for depth in depths:
            self._host.copy(key[: depth * TOKEN_BYTES])
        if depths:
            self._write(key[: depths[-1] * TOKEN_BYTES])

    def check(self) -> None:
        """Check the host's memory."""
        self._host.check()

    def _write(self, key: bytes) -> None:
        depth = len(key) // TOKEN_BYTES
        if self._files is not None and self._host.cache.match(key, depth).depth == depth:
            self._files.write(key)
