"""What a process keeps to its end."""

import ctypes
import gc

# glibc's numbers for mallopt, and what it makes of them by itself in a process that has freed a
# block of 32 MiB, the most that it takes. Which blocks a process has freed is chance.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
MAPPED_BYTES = 32 << 20
TRIMMED_BYTES = 2 * MAPPED_BYTES


def keep_freed_memory() -> bool:
    """For a process that makes and drops messages of a megabyte: what it frees it keeps, up to
    TRIMMED_BYTES a heap, and uses again.

    Else each message's memory goes back to the kernel and comes again page by page, which takes a
    sender of state half a millisecond a MiB: more than all else that it does. Whether the C library
    is one that can be told; glibc is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # Either alone would fix the other at its first value.
    said = (_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, TRIMMED_BYTES)
    return all(mallopt(number, value) for number, value in said)


def keep_what_is_loaded() -> None:
    """For a process that is up: the collector need not look at modules and models again.

    With them a full collection takes 90 ms, and it would come in the middle of a step.
    """
    gc.collect()
    gc.freeze()
