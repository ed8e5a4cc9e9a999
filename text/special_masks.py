"""Masks of grammars that name special tokens.

llguidance 1.9 lets every special token through where one of them may come beside a text, those
that end an answer among them, and then refuses it.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher

_NAMED = re.compile(r"<\[([^\]]*)\]>")
_RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_MOST_NAMED = 64


class SpecialMasks:
    """The special tokens that one grammar may let through. Immutable."""

    def __init__(self, named: Iterable[int], doubtful: Iterable[int]) -> None:
        """named: those of the grammar, and those that end an answer

        doubtful: all tokens that masks may have wrongly
        """
        self._named = sorted(set(named))
        self._sure = ~_bits(doubtful)

    def corrected(self, matcher: "LLMatcher", raw: bytes) -> bytes:
        """Return the mask `raw` with those special tokens alone that the grammar allows now."""
        mask = int.from_bytes(raw, "little")
        if not mask & ~self._sure:
            return raw
        right = mask & self._sure
        right |= _bits(
            token for token in self._named if mask >> token & 1 and matcher.validate_tokens([token])
        )
        return right.to_bytes(len(raw), "little")


def named_tokens(lark: str, vocab_size: int) -> list[int]:
    """Return the ids of the special tokens that a grammar in Lark names as `<[5,7-9]>`, the first
    few of them."""
    found: list[int] = []
    for inside in _NAMED.findall(lark):
        for part in inside.split(","):
            ends = _RANGE.fullmatch(part)
            if ends is not None:
                first, last = int(ends[1]), int(ends[2] or ends[1])
                found += range(first, min(last + 1, vocab_size, first + _MOST_NAMED))
    return [token for token in found if token < vocab_size][:_MOST_NAMED]


def _bits(tokens: Iterable[int]) -> int:
    found = 0
    for token in tokens:
        found |= 1 << token
    return found
