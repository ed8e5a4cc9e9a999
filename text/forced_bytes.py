"""Tokens for the bytes that a grammar forces, where a vocabulary lacks single bytes.

Where one text alone may come next and no token spells its beginning, llguidance 1.9 returns a mask
of tokens that it then refuses: `"` is forced, and every token without a quote is let through.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher


class ForcedBytes:
    """The tokens of one vocabulary, sorted by what they spell. Immutable."""

    def __init__(self, spelt: Sequence[bytes]) -> None:
        """spelt: the bytes of each token; none for special tokens."""
        self._sorted = sorted((raw, i) for i, raw in enumerate(spelt) if raw)
        self._ids = dict(self._sorted)
        self._longest = max(map(len, self._ids), default=0)
        self._sizes = [len(raw) for raw in spelt]

    @property
    def complete(self) -> bool:
        """Each byte is a token, as in all byte-level vocabularies: masks need no correction."""
        return all(bytes([byte]) in self._ids for byte in range(256))

    def spells(self, forced: bytes) -> bool:
        """Return True if tokens can spell bytes that must come; the last may spell more."""
        reached = {0}
        for at in range(len(forced)):
            if at in reached:
                agreeing = self._agreeing(forced[at : at + self._longest])
                reached |= {min(at + self._sizes[token], len(forced)) for token in agreeing}
        return len(forced) in reached

    def corrected(self, matcher: "LLMatcher", mask: "array[int]") -> "array[int]":
        """Return the mask of the tokens that agree with the bytes that must come next.

        mask: llguidance's, 64 tokens a word. It is returned as it is where nothing is forced. The
        result has no token where none spells what must come.
        """
        forced = matcher.compute_ff_bytes()
        if not forced:
            return mask
        agreeing = self._agreeing(forced)
        found = [i for i in agreeing if mask[i // 64] >> i % 64 & 1]
        # llguidance asks for the token that a tokenizer would choose, and knows it by single bytes.
        found = found or [i for i in agreeing if matcher.validate_tokens([i])]
        words = [0] * len(mask)
        for i in found:
            words[i // 64] |= 1 << i % 64
        raw = b"".join(word.to_bytes(8, "little") for word in words)
        return array("q", raw)

    def _agreeing(self, forced: bytes) -> list[int]:
        """Return the tokens that spell a beginning of `forced`, or all of it and more."""
        sizes = range(1, min(len(forced), self._longest + 1))
        found = [self._ids[forced[:size]] for size in sizes if forced[:size] in self._ids]
        for at in range(bisect_left(self._sorted, (forced, -1)), len(self._sorted)):
            raw, token = self._sorted[at]
            if not raw.startswith(forced):
                break
            found.append(token)
        return found
