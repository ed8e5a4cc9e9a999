"""Weights multiplied by constants of the model, so that its layers need not know of them."""

from collections.abc import Mapping

from torch import Tensor

from baton.engine.loading.eight_bit_part import EightBitPart, EightBitSource, eight_bit_of
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Shape, WeightSource


class MultipliedWeights(EightBitSource):
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

    def differs(self, name: str, other: str) -> bool:
        return self._source.differs(name, other)

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        own = self._source.tensor(name, shape, part)
        factor = self._factor(name)
        if own.is_meta or (isinstance(factor, float) and factor == 1.0):
            return own
        if isinstance(factor, Tensor):
            rows = factor.view(-1, *[1] * (len(shape) - 1))
            factor = rows if part.dim else part.of(rows)
        return own.float() * factor

    def eight_bit(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> EightBitPart | None:
        factor = self._factor(name)
        plain = isinstance(factor, float) and factor == 1.0
        return eight_bit_of(self._source, name, shape, part) if plain else None

    def _factor(self, name: str) -> float | Tensor:
        inside = name.partition(".layers.")[2].partition(".")[2]
        return self._factors.get(inside, 1.0)

    def release(self, name: str) -> None:
        self._source.release(name)
