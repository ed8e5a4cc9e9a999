"""Sizes of the memory that attention kernels take beside their arguments. Without torch and Triton,
so that memory can be planned before either is there."""

LEAST_PART = 256  # tokens
FEWEST_PARTS, MOST_PARTS = 32, 128  # of the longest context, by the GPU and the heads
PROCESSORS = 132  # of an H100, an H200: for plans that are made without the device
HEADS_OF_LATENT = 16  # heads that one program decodes where all share a latent
# Values of expanded latents that exist at once: heads are expanded some at a time past that.
EXPANDED_ON_CPU = 1 << 23
EXPANDED_ON_GPU = 1 << 27
_FLOAT32 = 4


def most_parts(groups: int, processors: int = PROCESSORS) -> int:
    """Return the most parts in which a row's context is attended to, on a GPU of so many
    multiprocessors.

    groups: of heads, each a program of its own for each part. Where groups are few, one row should
    still give every multiprocessor work: two programs each, as a power of two. More parts than that
    would only cost memory. It does not depend on the batch, so a row's result does not either.
    """
    wanted = max(1, 2 * processors // max(1, groups))
    return min(MOST_PARTS, max(FEWEST_PARTS, 1 << (wanted.bit_length() - 1)))


def parts_of(capacity: int, most: int) -> int:
    """Return the largest number of parts, `most` at most, in which a row of up to `capacity` tokens
    is attended to."""
    return min(most, max(1, -(-capacity // LEAST_PART)))


def parts_bytes(rows: int, heads: int, width: int, capacity: int, most: int) -> int:
    """Return the bytes of the parts' results of `rows` rows of up to `capacity` tokens: for each
    head and part a mean of `width` values, a maximum and a sum."""
    return rows * heads * parts_of(capacity, most) * (width + 2) * _FLOAT32
