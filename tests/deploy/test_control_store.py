"""The control store of a joined Ray: who has lost it says so within seconds, without a call."""

import socket
import subprocess
import sys

import pytest

from baton.deploy.cluster.control_store import (
    LOOK_S,
    LOST_S,
    SILENT_S,
    ControlStore,
    dial_tcp,
)

DEADLINE_S = 60.0


ADDRESS = "10.0.0.1:6379"


class Watched:
    """A store that answers as it is told, the test's clock, and what the operator is told."""

    def __init__(self) -> None:
        self.now = 100.0
        self.answers = True
        self.told: list[str] = []
        self.store = ControlStore(ADDRESS, self.told.append, lambda: self.now, self._dial)

    def wait(self, seconds: float) -> str:
        """Let time pass, with looks as often as the watch has them."""
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            lost = self.store.lost()
        return lost

    def _dial(self, address: str) -> None:
        assert address == ADDRESS
        if not self.answers:
            raise ConnectionRefusedError("refused")


def test_a_store_that_answers_is_not_lost() -> None:
    watched = Watched()
    assert watched.wait(2 * LOST_S) == "" and watched.told == []


def test_the_loss_is_told_within_seconds_and_counts_later() -> None:
    watched = Watched()
    watched.wait(10.0)
    watched.answers = False
    assert watched.wait(SILENT_S - LOOK_S) == "" and watched.told == []
    assert watched.wait(LOOK_S) == ""
    (line,) = watched.told
    assert line.startswith(f"Ray's control store at {ADDRESS} does not answer (refused)")
    assert f"ends in {LOST_S - SILENT_S:.0f} s unless" in line
    assert watched.wait(LOST_S - SILENT_S - LOOK_S) == ""
    assert watched.wait(LOOK_S) == f"control store at {ADDRESS}"
    assert len(watched.told) == 1


def test_a_store_that_comes_back_in_time_is_not_lost() -> None:
    watched = Watched()
    for _ in range(2):
        watched.answers = False
        assert watched.wait(LOST_S - LOOK_S) == ""
        watched.answers = True
        assert watched.wait(LOOK_S) == ""
        assert watched.told.pop() == f"Ray's control store at {ADDRESS} answers again"
        assert "does not answer" in watched.told.pop() and watched.told == []
    assert watched.wait(2 * LOST_S) == "" and watched.told == []


@pytest.mark.parametrize(
    ("family", "host", "written"),
    [(socket.AF_INET, "127.0.0.1", "127.0.0.1"), (socket.AF_INET6, "::1", "[::1]")],
)
def test_addresses_of_both_families_are_dialled(
    family: socket.AddressFamily, host: str, written: str
) -> None:
    with socket.create_server((host, 0), family=family) as listener:
        dial_tcp(f"{written}:{listener.getsockname()[1]}")
        caller, _ = listener.accept()
        with caller:
            assert caller.recv(1) == b""


SCRIPT = """
import sys, time
from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster import control_store
from baton.deploy.cluster.ray_lost import RayWatch, tell, watching_ray

control_store.SILENT_S, control_store.LOST_S, control_store.LOOK_S = 0.2, 1.0, 0.1
watch = RayWatch()
with watching_ray(watch, ProcessSupervisor(), grace_s=0.5, lost_grace_s=1.0):
    watch.begin(control_store.ControlStore(sys.argv[1], tell), "so that all ends")
    print("watches", flush=True)
    while True:
        time.sleep(60)  # in a call to Ray, say
"""


def test_a_process_that_hangs_is_ended_with_the_reason() -> None:
    host = "127.0.0.77"  # where nobody else listens
    with (
        socket.create_server((host, 0), backlog=512) as listener,
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, f"{host}:{listener.getsockname()[1]}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        address = f"{host}:{listener.getsockname()[1]}"
        assert process.stdout is not None and process.stdout.readline() == "watches\n"
        listener.close()
        _, said = process.communicate(timeout=DEADLINE_S)
    first, second = said.splitlines()
    assert process.returncode == 1
    assert first.startswith(f"baton: Ray's control store at {address} does not answer")
    assert second == f"baton: Ray's control store at {address} has ended, so that all ends"
