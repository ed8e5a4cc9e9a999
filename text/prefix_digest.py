"""Digests of token prefixes, by which workers and routers speak of what is cached.

A digest does not tell the tokens, and one cache salt's digests are not another's. Two prefixes may
have the same one (64 bits), so whoever acts on a digest must be right without it too.
"""

from array import array
from collections.abc import KeysView, Sequence

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


class PromptPrefixes:
    """A prompt and the digests of its prefixes, which are hashed as they are asked for."""

    def __init__(self, token_ids: Sequence[int], salt: bytes = SHARED) -> None:
        """token_ids: an array of type I is kept as it is, and must not change."""
        same = isinstance(token_ids, array) and token_ids.typecode == "I"
        self.token_ids: array[int] = token_ids if same else array("I", token_ids)  # type: ignore[assignment]
        self.salt = salt
        self._view = memoryview(self.token_ids)
        self._known: dict[int, int] = {}  # by length
        self._wanted: Sequence[int] = ()  # lengths that `among` was asked for last
        self._found: Sequence[int] = ()  # the digests of these
        self._state = xxhash.xxh3_64(salt)
        self._hashed = 0  # tokens in `_state`

    def __len__(self) -> int:
        """Return the number of tokens of the prompt."""
        return len(self.token_ids)

    def digests(self, lengths: Sequence[int]) -> list[int]:
        """Return the digests of the prefixes of these lengths, which rise and are at most the
        prompt's."""
        known = self._known
        if not known:
            return self._hash(lengths)
        try:
            return [*map(known.__getitem__, lengths)]
        except KeyError:
            self._hash([length for length in lengths if length not in known])
            return [*map(known.__getitem__, lengths)]

    def among(self, lengths: Sequence[int], digests: KeysView[int]) -> list[tuple[int, int]]:
        """Return (length, digest) of those prefixes that are in `digests`, rising.

        lengths: as in `digests`; others are not looked up.
        """
        if lengths != self._wanted:
            self._wanted, self._found = lengths, self.digests(lengths)
        at = self._found.index
        return sorted([(lengths[at(digest)], digest) for digest in digests & self._found])

    def _hash(self, lengths: Sequence[int]) -> list[int]:
        """Hash these prefixes, of which none is known."""
        if lengths and lengths[0] < self._hashed:  # anew: less work than a state for each length
            self._state, self._hashed = xxhash.xxh3_64(self.salt), 0
        view, at, found = self._view, self._hashed, []
        update, digest = self._state.update, self._state.intdigest
        for length in lengths:
            update(view[at:length])
            found.append(digest())
            at = length
        self._hashed = at
        self._known.update(zip(lengths, found, strict=True))
        return found
