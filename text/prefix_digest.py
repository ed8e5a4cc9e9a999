"""Digests of token prefixes, by which workers and routers speak of what is cached.

A digest does not tell the tokens, and one cache salt's digests are not another's. Two prefixes may
have the same one (64 bits), so whoever acts on a digest must be right without it too.
"""

from array import array
from collections.abc import Iterator, Sequence

import xxhash

from baton.core.cache_salt import SHARED


class PrefixDigest:
    """The digest of a cache salt and of the tokens so far."""

    def __init__(self, salt: bytes = SHARED) -> None:
        self._state = xxhash.xxh3_64(salt)

    def add(self, tokens: bytes | memoryview) -> int:
        """Append token ids, as 32-bit integers in the machine's order, and return the digest."""
        self._state.update(tokens)
        return self._state.intdigest()


def digests_at(
    token_ids: Sequence[int], lengths: Sequence[int], salt: bytes = SHARED
) -> Iterator[tuple[int, int]]:
    """Yield (length, digest) of the prefixes of these lengths, which rise."""
    if not lengths:
        return
    tokens = memoryview(array("I", token_ids[: lengths[-1]]))
    prefix, at = PrefixDigest(salt), 0
    for length in lengths:
        yield length, prefix.add(tokens[at:length])
        at = length
