"""Linear layers, and how tensor-parallel ranks divide them."""

from collections.abc import Mapping, Sequence

import torch.nn.functional as F
from torch import Tensor

from baton.engine.comm import Comm
from baton.engine.models.scope import Scope


class ColumnLinear:
    """y = x W^T + b with W's rows (the outputs) divided among the ranks.

    weight: [rows, columns], bias: [rows] or None, both in the model's dtype.
    """

    def __init__(
        self,
        scope: Scope,
        parts: Mapping[str, Sequence[int]],
        columns: int,
        bias: bool = False,
    ) -> None:
        """parts: projections that are computed as one, each with its row blocks in order."""
        self.weight = scope.rows(parts, "weight", (columns,))
        self.bias = scope.rows(parts, "bias", ()) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, columns] -> [T, this rank's rows]"""
        return F.linear(x, self.weight, self.bias)


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
        self.weight = scope.part(f"{name}.weight", (rows, columns), (columns,), dim=1)
        self.bias = scope.tensor(f"{name}.bias", rows) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, this rank's columns] -> [T, rows]"""
        y = self.comm.all_reduce(F.linear(x, self.weight))
        return y if self.bias is None else y + self.bias


class WholeLinear:
    """y = x W^T + b, all of it on every rank."""

    def __init__(
        self, scope: Scope, name: str, rows: int, columns: int, bias: bool = False
    ) -> None:
        self.weight = scope.tensor(f"{name}.weight", rows, columns)
        self.bias = scope.tensor(f"{name}.bias", rows) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, columns] -> [T, rows]"""
        return F.linear(x, self.weight, self.bias)
