"""Time since the command was given: the interpreter's own start and every import count too."""

import time

import psutil


def seconds_since_command() -> float:
    """Of wall clock, on one machine: the kernel dates a process no other way."""
    return time.time() - psutil.Process().create_time()
