"""The time since the command was given, including the interpreter's start and all imports."""

import time

import psutil


def seconds_since_command() -> float:
    """Return the seconds since this process was created.

    Uses the wall clock: the kernel offers no other time of creation.
    """
    return time.time() - psutil.Process().create_time()
