"""Random tensors for calls of GPU kernels."""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from baton.kernels.chunks import RaggedRows
from baton.kernels.eight_bit_weight import Fp8Words
from baton.kernels.verify import Accepted

WINDOW = 4  # tokens that a row verifies
LAYERS = 2  # that commit them together


@dataclass(frozen=True)
class Maker:
    """Random tensors on a device."""

    device: torch.device
    dtype: torch.dtype

    def floats(self, *size: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(size, dtype=dtype or self.dtype, device=self.device).normal_()

    def fp8(self, *size: int) -> Fp8Words:
        """Return a matrix, or several, of 8-bit floats in blocks of 128 inputs."""
        made = Fp8Words.empty(size, 128, self.dtype, self.device)
        made.put(slice(None), self.floats(*size).to(torch.float8_e4m3fn), made.scales.fill_(1.0))
        return made

    def wide(self, *size: int) -> Tensor:
        return self.floats(*size, dtype=torch.float32)

    def pools(self, rows: int, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return [LAYERS, rows + 1, *shape]; the layers of a slot lie side by side."""
        return self.floats(rows + 1, LAYERS, *shape, dtype=dtype).transpose(0, 1)

    def kept(self, rows: int, values: int) -> Tensor:
        """Return [LAYERS, WINDOW * rows, values]."""
        return self.floats(LAYERS, WINDOW * rows, values)

    def ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device)

    def slots(self, count: int) -> Tensor:
        return self.ints(list(range(1, count + 1)))

    def accepted(self, rows: int) -> Accepted:
        """Return a commit of all tokens of a window, in place and without snapshots."""
        slots, none = self.slots(rows), self.slots(rows) * 0
        return Accepted(slots, slots, None, none + WINDOW, none, none)

    def rows(self, lengths: list[int]) -> RaggedRows:
        """Return rows of prompts from their first token, in slots 1, 2, ..."""
        starts = (0, *accumulate(lengths))
        slots = self.slots(len(lengths))
        fresh = torch.zeros(len(lengths), dtype=torch.bool, device=self.device)
        lens = (self.ints(list(starts)), starts, (0,) * len(lengths))
        return RaggedRows(*lens, slots, slots, fresh)
