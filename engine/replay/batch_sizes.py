"""The numbers of rows of captured decode steps, and the memory that captures keep."""

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


def kept_bytes(most: int, vocab_size: int) -> int:
    """Return the bytes of all captured steps' inputs and logits, which stay from one replay to the
    next."""
    return sum(batch_sizes(most)) * (8 * _FIELDS + 4 * vocab_size)
