"""A mean of measurements in which the older ones count less."""


class FadingMean:
    """The sum of what was measured over the sum of what it was measured over.

    Both sums fade alike: each addition says which part of what came before it still counts.
    """

    __slots__ = ("amount", "units")

    def __init__(self) -> None:
        self.amount = 0.0
        self.units = 0.0

    @property
    def value(self) -> float:
        """Return the amount per unit; 0: nothing is measured."""
        return self.amount / self.units if self.units else 0.0

    def add(self, amount: float, units: float, kept: float) -> None:
        """Add a measurement. kept: the part of the earlier ones that counts on, 0 to 1."""
        self.amount = kept * self.amount + amount
        self.units = kept * self.units + units
