"""Threads of a worker hand over the interpreter soon."""

import subprocess
import sys

DEADLINE_S = 60.0
SERVED = """
import sys
import ray
from baton.deploy.cluster import host

class Served:
    def __init__(self, config, owner): ...
    def start(self): return sys.getswitchinterval()
    def stop(self, grace_s): ...

ray.get_runtime_context = lambda: type("Context", (), {"was_current_actor_reconstructed": False})
host.newest_config = lambda config: config  # it asks Ray
import asyncio
print(asyncio.run(host.RouterHost(Served, None).start()))
"""


def test_what_ray_hosts_runs_with_short_turns() -> None:
    """Python's own are 5 ms: a hand-off would wait for some of them."""
    child = [sys.executable, "-c", SERVED]
    ran = subprocess.run(child, check=True, capture_output=True, timeout=DEADLINE_S)
    assert float(ran.stdout) <= 1e-4
