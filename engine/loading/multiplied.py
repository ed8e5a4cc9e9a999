"""Weights multiplied by constants of the model, so that its layers need not know of them."""

from collections.abc import Mapping

from torch import Tensor

from baton.engine.loading.weights import Shape, WeightSource


class MultipliedWeights:
    """A `WeightSource` over another one.

    What has no factor, or a factor of one, is the other's tensor as it is; what has one is a copy
    in float32, so that it is rounded once.
    """

    def __init__(self, source: WeightSource, factors: Mapping[str, float | Tensor]) -> None:
        """factors: by a tensor's name inside its layer: a number, or a number a row: [rows]."""
        self._source = source
        self._factors = factors

    def holds(self, name: str) -> bool:
        return self._source.holds(name)

    def tensor(self, name: str, shape: Shape) -> Tensor:
        full = self._source.tensor(name, shape)
        inside = name.partition(".layers.")[2].partition(".")[2]
        factor = self._factors.get(inside, 1.0)
        if full.is_meta or (isinstance(factor, float) and factor == 1.0):
            return full
        if isinstance(factor, Tensor):
            factor = factor.view(-1, *[1] * (len(shape) - 1))
        return full.float() * factor

    def release(self, name: str) -> None:
        self._source.release(name)
