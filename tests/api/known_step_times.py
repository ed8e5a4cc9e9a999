"""The times of decode steps, as a router would have learned them."""

from collections.abc import Callable

from baton.api.admission.step_times import DecodeStepTimes


def times_of(step: Callable[[float], float], alone: float = 1.0) -> DecodeStepTimes:
    """Return what is known of steps that take so long, and by this factor less of one key."""
    times = DecodeStepTimes()
    for times.shared in (False, True):
        for _ in range(200):
            for rows in (1, 2, 8):
                times.add(rows, step(rows) * (1.0 if times.shared else alone))
    times.shared = False
    return times
