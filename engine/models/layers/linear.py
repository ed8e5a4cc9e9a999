"""Linear layers, and how tensor-parallel ranks divide them."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Protocol

from torch import Tensor

from baton.engine.collectives.comm import Comm
from baton.engine.models.scope import Block, Scope, places


class Linear(Protocol):
    """The interface of a projection."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply. x: [T, columns] -> [T, this rank's rows]"""
        ...


class ColumnLinear:
    """y = x W^T + b with W's rows (the outputs) divided among the ranks.

    weight: [rows, columns] in the model's dtype, or 8-bit; bias: [rows] in that which products add
    biases in, or None.
    """

    def __init__(
        self,
        scope: Scope,
        parts: Mapping[str, Sequence[Block]],
        columns: int,
        bias: bool = False,
        then: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> None:
        """parts: projections that are computed as one, each with its row blocks in order.

        then: for some of them, the rows in the order that the layer wants, from this rank's.
        """
        self.kernels = scope.kernels
        self.weight = scope.product_rows(parts, columns, then)
        self.bias = scope.rows(parts, "bias", (), scope.bias_dtype, then) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply. x: [T, columns] -> [T, this rank's rows]"""
        return self.kernels.linear(x, self.weight, self.bias)


class RowLinear:
    """y = x W^T + b with W's columns (the inputs) divided among the ranks; every rank gets y."""

    def __init__(
        self,
        scope: Scope,
        name: str,
        rows: int,
        columns: Block,
        bias: bool = False,
    ) -> None:
        """columns: the block of the inputs, which the ranks divide."""
        self.comm: Comm = scope.comm
        self.kernels = scope.kernels
        self.weight = scope.product(f"{name}.weight", (rows, places((columns,))), (columns,), dim=1)
        self.bias = scope.tensor(f"{name}.bias", rows, dtype=scope.bias_dtype) if bias else None
        self.own_bias = self.bias if scope.shard.rank == 0 else None  # added once in the sum

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply. x: [T, this rank's columns] -> [T, rows]"""
        return self.comm.all_reduce(self.part(x))

    def part(self, x: Tensor) -> Tensor:
        """Multiply this rank's inputs alone: the sum of all ranks' is the product."""
        return self.kernels.linear(x, self.weight, self.own_bias)


class WholeLinear:
    """y = x W^T + b, all of it on every rank."""

    def __init__(
        self, scope: Scope, name: str, rows: int, columns: int, bias: bool = False
    ) -> None:
        self.kernels = scope.kernels
        self.weight = scope.product(f"{name}.weight", (rows, columns), ())
        self.bias = scope.tensor(f"{name}.bias", rows, dtype=scope.bias_dtype) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply. x: [T, columns] -> [T, rows]"""
        return self.kernels.linear(x, self.weight, self.bias)


class Adapted:
    """y = base(x) + up(down(x)): a projection that others share, and low-rank adapters of its own
    (Hu et al., 2021, arXiv:2106.09685), one for each part of its rows."""

    def __init__(
        self,
        scope: Scope,
        base: Linear,
        adapters: Mapping[str, Sequence[Block]],
        columns: int,
        rank: int,
    ) -> None:
        """adapters: names, in the order of the rows that they add to, with their row blocks."""
        self.kernels = scope.kernels
        self.base = base
        self.adapters = [
            (
                WholeLinear(scope, f"{name}.0", rank, columns),
                ColumnLinear(scope, {f"{name}.1": blocks}, rank),
            )
            for name, blocks in adapters.items()
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply. x: [T, columns] -> [T, this rank's rows]"""
        added = [up(down(x)) for down, up in self.adapters]
        return self.kernels.add_scaled(self.base(x), reduce(self.kernels.concat, added), 1.0)
