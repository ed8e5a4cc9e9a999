"""Weights that a checkpoint may hold once more, under the name of each layer that uses them."""

from torch import Tensor

from baton.engine.loading.eight_bit_part import EightBitPart, EightBitSource, eight_bit_of
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Shape, WeightSource


class CopiedWeights(EightBitSource):
    """A `WeightSource` over another one, in which names that begin with `copy` stand for those
    that begin with `original`, but where there is a tensor of that name with other values.
    """

    def __init__(self, source: WeightSource, *, copy: str, original: str) -> None:
        self._source = source
        self._copy = copy
        self._original = original

    def of(self, name: str) -> str:
        """Return the name of the tensor that is used."""
        if not name.startswith(self._copy):
            return name
        original = self._original + name.removeprefix(self._copy)
        return name if self._source.differs(name, original) else original

    def holds(self, name: str) -> bool:
        return self._source.holds(self.of(name))

    def differs(self, name: str, other: str) -> bool:
        return self._source.differs(name, other)

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        return self._source.tensor(self.of(name), shape, part)

    def eight_bit(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> EightBitPart | None:
        return eight_bit_of(self._source, self.of(name), shape, part)

    def release(self, name: str) -> None:
        self._source.release(self.of(name))
