"""Linear layers, and how tensor-parallel ranks divide them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from baton.engine.comm import Comm
from baton.engine.models.scope import Scope


class ColumnLinear:
    """y = x W^T + b with W's rows (the outputs) divided among the ranks.

    weight: [rows, columns] in the model's dtype, or 8-bit; bias: [rows] float32, or None.
    """

    def __init__(
        self,
        scope: Scope,
        parts: Mapping[str, Sequence[int]],
        columns: int,
        bias: bool = False,
    ) -> None:
        """parts: projections that are computed as one, each with its row blocks in order."""
        self.kernels = scope.kernels
        self.weight = scope.matrix(scope.rows(parts, "weight", (columns,)))
        self.bias = scope.rows(parts, "bias", (), torch.float32) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, columns] -> [T, this rank's rows]"""
        return self.kernels.linear(x, self.weight, self.bias)


class RowLinear:
    """y = x W^T + b with W's columns (the inputs) divided among the ranks; every rank gets y."""

    def __init__(
        self,
        scope: Scope,
        name: str,
        rows: int,
        columns: int,
        bias: bool = False,
    ) -> None:
        self.comm: Comm = scope.comm
        self.kernels = scope.kernels
        self.weight = scope.matrix(scope.part(f"{name}.weight", (rows, columns), (columns,), dim=1))
        self.bias = scope.tensor(f"{name}.bias", rows, dtype=torch.float32) if bias else None
        self.own_bias = self.bias if scope.shard.rank == 0 else None  # added once in the sum

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, this rank's columns] -> [T, rows]"""
        return self.comm.all_reduce(self.kernels.linear(x, self.weight, self.own_bias))


class WholeLinear:
    """y = x W^T + b, all of it on every rank."""

    def __init__(
        self, scope: Scope, name: str, rows: int, columns: int, bias: bool = False
    ) -> None:
        self.kernels = scope.kernels
        self.weight = scope.matrix(scope.tensor(f"{name}.weight", rows, columns))
        self.bias = scope.tensor(f"{name}.bias", rows, dtype=torch.float32) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, columns] -> [T, rows]"""
        return self.kernels.linear(x, self.weight, self.bias)
