"""Texts of answers that are over, on the host: what follows some tokens in them is looked up."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.engine.settings.choices import MOST_NODES
from baton.engine.speculation.ngram import LONGEST

MOST_TOKENS = 8192
"""Tokens of a text that are kept, its newest ones."""
TOKEN_BYTES = 24
"""Memory for each token that is kept, at most."""

_FOLLOWING = MOST_NODES - 1  # tokens, at most, that a request asks for
_END = 0xFFFFFFFF  # stands behind each text; no token
_NOBODY = 0  # the number of places without a text
_FACTOR = 0x9E3779B97F4A7C15  # odd, so that all bits of a key reach the highest ones
_MASK = (1 << 64) - 1


class SharedTexts:
    """The newest texts, up to `capacity` tokens, each of one scope: a text is found by requests of
    its scope alone. A new text takes the place of the oldest.

    An n-gram is looked up in a table by its hash, where the newest of the same hash is that a whole
    window follows. What is found is compared with the tokens and the scope that are asked for.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: tokens, with one for the end of each text; more than `LONGEST`."""
        self._tokens = np.full(capacity, _END, np.uint32)
        self._numbers = np.full(capacity, _NOBODY, np.uint32)  # of each token's scope
        bits = (2 * capacity - 1).bit_length()
        self._places = np.zeros(1 << bits, np.uint32)  # by hash: where the n-gram has ended
        self._shift = 64 - bits
        self._next = 0  # place of the next text
        self._number: dict[bytes, int] = {}  # by scope, of those with tokens here
        self._held: dict[int, int] = {}  # tokens here, by the number of their scope
        self._scope: dict[int, bytes] = {}
        self._free: list[int] = []  # numbers that no token here has

    @property
    def nbytes(self) -> int:
        """Memory of the texts and the table."""
        return self._tokens.nbytes + self._numbers.nbytes + self._places.nbytes

    def add(self, scope: bytes, token_ids: Sequence[int]) -> None:
        """Keep the newest tokens of a text."""
        capacity = len(self._tokens)
        newest = token_ids[-min(MOST_TOKENS, capacity - 1) :]
        if len(newest) <= LONGEST:
            return
        text = np.array((*newest, _END), np.uint32)
        places = (self._next + np.arange(len(text))) % capacity
        self._next = int(places[-1] + 1) % capacity
        number = self._take(scope, self._numbers[places], len(text))
        self._tokens[places], self._numbers[places] = text, number
        ends = np.arange(LONGEST, len(text) - 1)
        # In a text that repeats itself an earlier place is better than one that little follows.
        ends = np.concatenate((ends[-_FOLLOWING:], ends[:-_FOLLOWING]))
        grams = (text[ends - LONGEST + place].astype(np.uint64) for place in range(LONGEST))
        keys = np.full(len(ends), number, np.uint64)
        for gram in grams:
            keys = keys * np.uint64(_FACTOR) + gram
        slots = (keys * np.uint64(_FACTOR)) >> np.uint64(self._shift)
        self._places[slots] = places[ends]  # the last of the same hash

    def following(self, scope: bytes, tail: Sequence[int], most: int) -> Sequence[int]:
        """Return at most `most` tokens that followed `tail` in a text of `scope`.

        tail: LONGEST tokens.
        """
        number = self._number.get(scope)
        if number is None:
            return ()
        key = number
        for token in tail:
            key = (key * _FACTOR + token) & _MASK
        end = int(self._places[(key * _FACTOR & _MASK) >> self._shift])
        places = [place % len(self._tokens) for place in range(end - LONGEST, end + most)]
        tokens: list[int] = self._tokens[places].tolist()
        numbers: list[int] = self._numbers[places].tolist()
        if tokens[:LONGEST] != list(tail) or numbers[:LONGEST] != [number] * LONGEST:
            return ()
        found = tokens[LONGEST:]
        mine = zip(found, numbers[LONGEST:], strict=True)
        stop = next((i for i, (t, n) in enumerate(mine) if t == _END or n != number), most)
        return found[:stop]

    def _take(self, scope: bytes, overwritten: npt.NDArray[np.uint32], tokens: int) -> int:
        """Let `tokens` places, which had these numbers, be of `scope`; return its number."""
        number = self._number.get(scope)
        if number is None:
            number = self._free.pop() if self._free else len(self._number) + 1
            self._number[scope], self._scope[number], self._held[number] = number, scope, 0
        self._held[number] += tokens
        for old, count in zip(*np.unique(overwritten, return_counts=True), strict=True):
            if old != _NOBODY:
                self._give_back(int(old), int(count))
        return number

    def _give_back(self, number: int, tokens: int) -> None:
        self._held[number] -= tokens
        if not self._held[number]:
            del self._held[number], self._number[self._scope.pop(number)]
            self._free.append(number)
