"""Rows of a script in processes of their own, all at once.

An engine's start mostly waits for Triton's compiler, which uses one core. A row that loses its
device loses nothing else.
"""

import multiprocessing
import os
from collections.abc import Callable, Mapping

from baton.bench.gpu.parts import Part

_TOLD_S = 2.0  # of the part, in which it tells which rows it has stopped


def side_by_side(part: Part, rows: Mapping[str, Callable[[], None]]) -> None:
    """Run all rows at once, each as `Part.row` does; stop those that the part has no time for.

    The part must not have used CUDA: a forked process could not use it.
    """
    forked = multiprocessing.get_context("fork")
    started = {
        what: forked.Process(target=_alone, args=(part, what, work)) for what, work in rows.items()
    }
    for process in started.values():
        process.start()
    for what, process in started.items():
        process.join(max(0.0, part.left_s - _TOLD_S))
        if process.exitcode is None:
            process.kill()
            process.join()
            part.add(what, "stopped", beside="its time was over", failed=True)
        elif process.exitcode:
            part.add(what, f"ended with {process.exitcode}", failed=True)


def _alone(part: Part, what: str, work: Callable[[], None]) -> None:
    part.row(what, work)
    os._exit(0)  # a lost device would end the process with an error of its own
