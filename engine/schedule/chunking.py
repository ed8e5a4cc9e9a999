"""The sizes of prefill chunks: pure functions of lengths."""

from dataclasses import dataclass

from baton.engine.schedule.step_speeds import StepSpeeds
from baton.engine.settings.choices import MixedBudget

LEAST_BESIDE = 64
"""The fewest prompt tokens beside rows that decode that `MixedBudget.AUTO` chooses: fewer would
cost more each. On two cores with a small Granite a token costs 149 us in chunks of 32, 114 in
chunks of 64 and 94 in chunks of 128."""


@dataclass(frozen=True)
class PromptBudget:
    """The most prompt tokens of a step. `beside`: of one in which requests decode, too; None: as
    many as in others. `speeds`: of this engine's steps. `itl_target_s`: where `beside` is AUTO, no
    step takes longer, for the answers in it and for those that come meanwhile; None: any time.
    """

    alone: int
    beside: int | MixedBudget | None
    speeds: StepSpeeds
    itl_target_s: float | None = None

    @property
    def beside_decode(self) -> int:
        """Return the budget of a step in which requests decode."""
        if self.beside is None:
            return self.alone
        if self.beside is MixedBudget.AUTO:
            if (most := self._in_time(decoding=True)) is not None:
                return most
            return self.speeds.beside(min(LEAST_BESIDE, self.alone), self.alone)
        return min(self.alone, self.beside)

    def tokens(self, *, decoding: bool) -> int:
        """Return the budget of a step. decoding: a request's next token waits for it."""
        if decoding:
            return self.beside_decode
        if self.beside is MixedBudget.AUTO and (most := self._in_time(decoding=False)) is not None:
            return most
        return self.alone

    def _in_time(self, *, decoding: bool) -> int | None:
        """Return the most tokens of a step by its target; None: no target, or speeds not known."""
        if self.itl_target_s is None:
            return None
        return self.speeds.within(self.itl_target_s, self.alone, decoding=decoding)


def chunk_end(start: int, target: int, budget: int, grid: int, first: bool) -> int:
    """Return the end of the chunk that begins at `start`, or `start` where it should wait.

    Ends lie on absolute multiples of `grid` (the kernel chunk) where they can, so that a prompt is
    cut alike however it was scheduled, and state exists where kernels make it anyway. A step's
    `first` chunk has the whole budget, so it proceeds even if that does not reach the grid. Later
    ones wait for another step.
    """
    end = min(start + budget, target)
    if end == target:
        return end
    aligned = end - end % grid
    if aligned > start:
        return aligned
    return end if first else start
