"""Guesses on the device from a request's own tokens: what followed the same last few before."""

from torch import Tensor

from baton.engine.memory.request_tables import RequestTables
from baton.engine.speculation.ngram import LONGEST, SHORTEST
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH

SEARCHED = 4096
"""Tokens of a sequence, its newest ones, that are searched."""


class DeviceNgram:
    """Guesses the tokens that followed the newest n-gram where it occurred last, as `NgramProposer`
    does, among the newest `SEARCHED` tokens.
    """

    def __init__(self, kernels: Kernels = TORCH) -> None:
        self._kernels = kernels

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`."""
        sizes = SHORTEST, LONGEST
        return self._kernels.guess_ngrams(tables.tokens, rows, ends, SEARCHED, sizes, most)
