"""Which prefixes this rank has kept the state of: where a conversation's next turn may begin."""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Sequence

import xxhash

KEPT = 4096
"""Prefixes that are remembered; what the cache has given up meanwhile costs a question."""


class ReturnBook:
    """Known by their lengths and hashes, without asking the engine."""

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()  # oldest first
        self._lengths: Counter[int] = Counter()

    def add(self, token_ids: Sequence[int]) -> None:
        """The state after exactly these tokens is in the cache."""
        key = (len(token_ids), xxhash.xxh3_64_intdigest(array("I", token_ids).tobytes()))
        if key not in self._known:
            self._lengths[key[0]] += 1
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > self._most:
            (length, _), _ = self._known.popitem(last=False)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def deepest(self, prompt_ids: Sequence[int]) -> int:
        """Tokens of the longest known prefix that leaves a token to compute; 0: there is none."""
        digest, at, found = xxhash.xxh3_64(), 0, 0
        for length in sorted(n for n in self._lengths if n < len(prompt_ids)):
            digest.update(array("I", prompt_ids[at:length]).tobytes())
            at = length
            if (length, digest.intdigest()) in self._known:
                found = length
        return found
