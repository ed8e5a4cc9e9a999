"""Guesses from a request's own tokens, on the host and on the device: what followed the same last
few tokens before.
"""

from collections.abc import Sequence

from torch import Tensor

from baton.engine.memory.request_tables import RequestTables
from baton.engine.speculation.proposer import DecodingStep
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH

# Tokens that must be the same: as many as possible, at most and at least so many.
LONGEST, SHORTEST = 4, 2
SEARCHED = 4096
"""Tokens of a sequence, its newest ones, that are searched on the device."""


class _History:
    """The n-grams of one request, and where each has ended last, before the newest token."""

    def __init__(self) -> None:
        self.ends: dict[tuple[int, ...], int] = {}
        self.seen = 0  # tokens whose n-grams are here


class NgramProposer:
    """Proposes the tokens that followed the newest n-gram where it occurred last.

    A step costs as much as the tokens that are new, at any length of the sequence.
    """

    def __init__(self) -> None:
        self._histories: dict[int, _History] = {}

    def propose(self, serial: int, token_ids: Sequence[int], most: int) -> Sequence[int]:
        """See `Proposer`."""
        history = self._histories.setdefault(serial, _History())
        ends, count = history.ends, len(token_ids)
        for end in range(max(history.seen, SHORTEST), count):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                ends[tuple(token_ids[end - size : end])] = end
        history.seen = count
        for size in range(min(LONGEST, count), SHORTEST - 1, -1):
            found = ends.get(tuple(token_ids[count - size :]))
            if found is not None:
                # What repeats itself goes on repeating itself.
                period = count - found
                return [token_ids[found + place % period] for place in range(most)]
        return ()

    def forget(self, serial: int) -> None:
        """See `Proposer`."""
        self._histories.pop(serial, None)


class NgramTree:
    """Guesses the tokens that followed the newest n-gram where it occurred, at several places among
    the newest `SEARCHED` tokens.
    """

    def __init__(self, kernels: Kernels, branches: int, depth: int) -> None:
        """branches: continuations of a row, at most. depth: tokens of each."""
        self._kernels = kernels
        self._shape = branches, depth

    def propose_tree(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `TreeProposer`."""
        sizes = SHORTEST, LONGEST
        found = tables.tokens, rows, ends, SEARCHED, sizes, most
        return self._kernels.guess_tree(*found, *self._shape)


class DeviceNgram:
    """Guesses the tokens that followed the newest n-gram where it occurred last, as `NgramProposer`
    does, among the newest `SEARCHED` tokens.
    """

    def __init__(self, kernels: Kernels = TORCH) -> None:
        self._kernels = kernels

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`."""
        sizes = SHORTEST, LONGEST
        return self._kernels.guess_ngrams(tables.tokens, rows, ends, SEARCHED, sizes, most)
