"""An index from prefixes of token ids to the workers that keep something of them: the places where
a conversation's next turn may begin."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from baton.core.cache_salt import SHARED
from baton.text.prefix_digest import PrefixDigest

CacheOwner = TypeVar("CacheOwner", bound=Hashable)

KEPT = 4096
"""Prefixes that are remembered; what a cache has given up meanwhile costs a question."""


class PrefixIndex(Generic[CacheOwner]):
    """An index of prefixes, by length and by the hash of their cache salt and tokens. It is not
    verified, so it may be out of date."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, int], tuple[CacheOwner, ...]] = OrderedDict()
        """Oldest first."""
        self._lengths: Counter[int] = Counter()

    def add(self, token_ids: Sequence[int], holder: CacheOwner, salt: bytes = SHARED) -> None:
        """Record that `holder` has kept the state after exactly these tokens under `salt`."""
        key = (len(token_ids), PrefixDigest(salt).add(array("I", token_ids).tobytes()))
        if key not in self._known:
            self._lengths[key[0]] += 1
        holders = self._known.get(key, ())
        # Few, and thousands of these: a tuple is a quarter of a set, and no work for the collector.
        self._known[key] = holders if holder in holders else (*holders, holder)
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            (length, _), _ = self._known.popitem(last=False)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def held(self, token_ids: Sequence[int], salt: bytes = SHARED) -> dict[CacheOwner, int]:
        """Return the length of the longest prefix under `salt` that each holder has, shorter than
        the whole."""
        digest, at = PrefixDigest(salt), 0
        found: dict[CacheOwner, int] = {}
        for length in sorted(n for n in self._lengths if n < len(token_ids)):
            key = (length, digest.add(array("I", token_ids[at:length]).tobytes()))
            at = length
            for holder in self._known.get(key, ()):
                found[holder] = length
        return found

    def clear(self) -> None:
        self._known.clear()
        self._lengths.clear()
