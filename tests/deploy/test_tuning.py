"""Tests of the memory that a worker's process keeps, each in a fresh process."""

import subprocess
import sys

import pytest

DEADLINE_S = 60.0
MESSAGES = """
import resource
from baton.deploy.process.tuning import keep_freed_memory

if not keep_freed_memory():
    print(-1)
    raise SystemExit
def pass_messages():
    for size in range(1 << 20, (1 << 20) + 64):
        held = [bytes(size), bytes(size), bytes(size)]
pass_messages()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pass_messages()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_a_worker_uses_the_memory_of_old_messages_for_new_ones() -> None:
    """An untuned process has some 3,000 page faults with these messages."""
    child = [sys.executable, "-c", MESSAGES]
    ran = subprocess.run(child, check=True, capture_output=True, timeout=DEADLINE_S)
    faults = int(ran.stdout)
    if faults < 0:
        pytest.skip("this C library cannot be told")
    assert faults < 300
