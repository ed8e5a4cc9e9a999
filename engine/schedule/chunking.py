"""The sizes of prefill chunks: pure functions of lengths."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptBudget:
    """The most prompt tokens of a step. `beside`: of one in which requests decode, too."""

    alone: int
    beside: int

    def tokens(self, *, decoding: bool) -> int:
        """Return the budget of a step. decoding: a request's next token waits for it."""
        return min(self.alone, self.beside) if decoding else self.alone


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
