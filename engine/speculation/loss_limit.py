"""The limit of what drafts may cost more than they give."""

# Plain steps: that may be lost at once; from which drafts are tried again after such a loss; and
# the part of the steps that may be lost in the long run.
_MOST, _AGAIN, _SHARE = 8.0, 4.0, 0.01
_WORN = 2.0  # plain steps of `_MOST` that are lost


class LossLimit:
    """An account of steps with drafts, in plain steps: it grows by what they gave beyond their
    cost, and a little with each step.

    While it is overdrawn nothing is drafted. So drafts that are tried because their cost or their
    acceptance is not known, or has changed, cost little in all, whatever becomes of them.
    """

    def __init__(self) -> None:
        self._left = _MOST
        self.open = True  # drafts may be verified

    def step(self) -> None:
        """Note another step."""
        self._left = min(_MOST, self._left + _SHARE)
        self.open = self.open or self._left >= _AGAIN

    def add(self, tokens: float, cost: float) -> None:
        """Note a step with drafts. tokens: of a row, on average. cost: in plain steps."""
        self._left = min(_MOST, self._left + tokens - cost)
        self.open = self.open and self._left > 0.0

    @property
    def full(self) -> bool:
        """True if nothing is lost that was not won back."""
        return self._left >= _MOST

    @property
    def worn(self) -> bool:
        """True if the latest drafts may not be worth their cost."""
        return self._left < _MOST - _WORN
