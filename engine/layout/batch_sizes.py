"""The numbers of rows of captured decode steps, and the memory that captures keep."""

from collections.abc import Sequence
from functools import cache

# Sizes up to _FINE are powers of two, then multiples of it: at most a fifth of a large batch is
# padding, and a padding row costs no attention and no state that is not in the cache.
_FINE = 8
_FIELDS = 12  # of 8 bytes, that a row of a captured step has: see `StaticStep`


def batch_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows of the captured steps, rising; the last is `most`."""
    sizes = {size for size in (1, 2, 4) if size < most}
    step = _FINE
    size = _FINE
    while size < most:
        sizes.add(size)
        step = max(step, size // 4 // _FINE * _FINE)
        size += step
    return (*sorted(sizes), most)


@cache  # each step asks
def window_sizes(most: int, tokens: int) -> tuple[int, ...]:
    """Return the numbers of requests of the captured steps that verify `tokens` tokens of each.

    None has more rows than the largest step of one token a request, so that logits, which captured
    steps keep, take no more memory than those steps'. Larger windows run without a capture.
    """
    return batch_sizes(most // tokens) if most >= tokens else ()


def draft_sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of rows of the captured depths of drafts: of as many requests as the
    smallest captured window has. Of more, neither is captured."""
    return window_sizes(most, 2)


def kept_bytes(
    most: int, vocab_size: int, windows: Sequence[int] = (), *, drafts: bool = False
) -> int:
    """Return the bytes of all captured steps' inputs and logits, which stay from one replay to the
    next. windows: tokens of a request that steps verify, other than 1. drafts: those of a model's
    own layer are captured."""
    rows = sum(batch_sizes(most)) + (sum(draft_sizes(most)) if drafts else 0)
    rows += sum(tokens * sum(window_sizes(most, tokens)) for tokens in windows)
    return rows * (8 * _FIELDS + 4 * vocab_size)
