"""Proposers of tests: sequences that are known, guessed right or wrong."""

import random
from collections.abc import Iterable, Sequence


class Known:
    """Proposes what follows in sequences that plain decoding has made. Each token is right with
    probability `right`; a wrong one is another of the vocabulary."""

    def __init__(
        self,
        sequences: Iterable[Sequence[int]],
        right: float,
        vocab: int,
        rng: random.Random | None = None,
    ) -> None:
        self._sequences = [tuple(sequence) for sequence in sequences]
        self._right = right
        self._vocab = vocab
        self._rng = rng or random.Random(0)
        self.asked = 0
        self.forgotten: set[int] = set()

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        self.asked += 1
        mine, count = tuple(token_ids), len(token_ids)
        rest = next((s[count:] for s in self._sequences if s[:count] == mine), ())
        return [
            token if self._rng.random() < self._right else self._other(token)
            for token in rest[:most]
        ]

    def _other(self, token: int) -> int:
        return (token + 1 + self._rng.randrange(self._vocab - 1)) % self._vocab

    def forget(self, serial: int) -> None:
        self.forgotten.add(serial)
