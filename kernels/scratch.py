"""Sizes of the memory that attention kernels take beside their arguments. Without torch and Triton,
so that memory can be planned before either is there."""

MOST_PARTS = 32
LEAST_PART = 256  # tokens
# Values of expanded latents that exist at once: heads are expanded some at a time past that.
EXPANDED_ON_CPU = 1 << 23
EXPANDED_ON_GPU = 1 << 27
_FLOAT32 = 4


def parts_of(capacity: int) -> int:
    """Return the largest number of parts in which a row of up to `capacity` tokens is attended
    to."""
    return min(MOST_PARTS, max(1, -(-capacity // LEAST_PART)))


def parts_bytes(rows: int, heads: int, width: int, capacity: int) -> int:
    """Return the bytes of the parts' results of `rows` rows of up to `capacity` tokens: for each
    head and part a mean of `width` values, a maximum and a sum."""
    return rows * heads * parts_of(capacity) * (width + 2) * _FLOAT32
