"""Settings of the C library and the interpreter for long-lived processes."""

import ctypes
import gc
import sys

# glibc's parameter numbers for mallopt. The values are those that glibc reaches by itself once a
# process has freed a block of 32 MiB; whether a process ever does is chance.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
MAPPED_BYTES = 32 << 20
TRIMMED_BYTES = 2 * MAPPED_BYTES
SWITCH_S = 50e-6


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory, up to TRIMMED_BYTES a heap, and reuse it.

    Otherwise each message of a megabyte returns its memory to the kernel and gets it back page by
    page. That costs a sender of state half a millisecond a MiB, more than all its other work.

    Returns whether the C library supports the setting; glibc does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # Set both: setting one alone stops glibc from adapting the other.
    said = (_M_MMAP_THRESHOLD, MAPPED_BYTES), (_M_TRIM_THRESHOLD, TRIMMED_BYTES)
    return all(mallopt(number, value) for number, value in said)


def keep_what_is_loaded() -> None:
    """Exclude all present objects, such as modules and models, from garbage collection.

    With them a full collection takes 90 ms, possibly in the middle of a step.
    """
    gc.collect()
    gc.freeze()


def switch_often() -> None:
    """Let a waiting thread have the interpreter after 50 us in place of Python's 5 ms.

    For processes whose event loop and engine thread pass work to each other. A hand-off changes
    threads four times between the prefill's last layer and the first decode step; this saves 0.3 ms
    of it, and throughput stays the same.
    """
    sys.setswitchinterval(SWITCH_S)
