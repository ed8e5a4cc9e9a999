"""The end of a prefill chunk. A pure function of lengths."""


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
