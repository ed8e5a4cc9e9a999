"""Where a prefill chunk ends. A pure function of lengths."""


def chunk_end(start: int, target: int, budget: int, grid: int, first: bool) -> int:
    """The end of the chunk that begins at `start`, or `start` where it had better wait.

    Ends lie on absolute multiples of `grid` (the kernel chunk) where they can, so that a prompt is
    cut alike however it was scheduled, and state exists where the kernels have it anyway. A step's
    `first` chunk has the whole budget, so it must get on even where that does not reach the grid;
    later ones wait for their turn instead.
    """
    end = min(start + budget, target)
    if end == target:
        return end
    aligned = end - end % grid
    if aligned > start:
        return aligned
    return end if first else start
