"""The names of threads as the kernel shows them: in `top -H`, `perf` and /proc."""

import contextlib
import threading
from pathlib import Path

_LONGEST = 15  # bytes that the kernel keeps


def show_name(name: str) -> None:
    """Give the calling thread its name in the kernel. Python's own names stay in the process.

    Threads that it starts afterwards have the name too, unless they take one: so those of a step's
    kernels are called as the thread that runs the steps.
    """
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    with contextlib.suppress(OSError):  # a name is not worth a failure
        comm.write_bytes(name.encode()[:_LONGEST])
