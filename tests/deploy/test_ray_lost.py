"""Ray's processes that end: by a signal to the process group, or by themselves."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from kit.polling import wait_until
from kit.processes import until_ended

from baton.deploy.cluster.ray_processes import RayProcesses
from baton.deploy.cluster.ray_reaper import reap

DEADLINE_S = 60.0
SCRIPT = """
import signal, subprocess, sys, time
from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster.ray_lost import RayWatch, watching_ray
from baton.deploy.cluster.ray_processes import RayProcesses

class Stop(Exception): pass

def stop(*_):
    if sys.argv[2] != "wait for ever":
        raise Stop

signal.signal(signal.SIGTERM, stop)
quiet = subprocess.DEVNULL
child = subprocess.Popen([sys.argv[1], "600"], stdout=quiet, stderr=quiet)
watch = RayWatch()
try:
    with watching_ray(watch, ProcessSupervisor(), grace_s=0.5, lost_grace_s=2.0):
        watch.begin(RayProcesses(), "so that all ends")
        try:
            print(child.pid, flush=True)  # the signal may come before this returns
            while True:
                time.sleep(0.1)
        finally:
            if sys.argv[2] == "stop Ray":
                watch.end()
                child.kill()
                time.sleep(3)  # longer than any grace
except Stop:
    print("stopped", flush=True)
"""


@contextmanager
def started(tmp_path: Path, then: str) -> Iterator[tuple["subprocess.Popen[str]", psutil.Process]]:
    """A process that holds a child which is called as Ray's is, and that child."""
    raylet = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "", raylet)
    words = [sys.executable, "-c", SCRIPT, str(raylet), then]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        try:
            yield process, child
        finally:
            if child.is_running():
                child.kill()


def test_what_waits_for_a_lost_ray_is_ended(tmp_path: Path) -> None:
    with started(tmp_path, "wait for ever") as (process, _):
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
        assert said == "stopped: the signal has ended Ray too, so no request could end\n"


def test_with_ray_still_there_we_stop_as_ever(tmp_path: Path) -> None:
    with started(tmp_path, "raise") as (process, child):
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, "stopped\n")
        assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE


def test_a_ray_that_is_lost_while_this_process_hangs_is_named_and_ends_it(tmp_path: Path) -> None:
    with started(tmp_path, "wait for ever") as (process, child):
        child.kill()
        assert process.stderr is not None
        said = f"baton: Ray's raylet (pid {child.pid}) has ended, so that all ends\n"
        assert process.stderr.readline() == said
        _, more = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, more) == (1, "")


def test_a_ray_that_is_stopped_in_order_is_not_called_lost(tmp_path: Path) -> None:
    with started(tmp_path, "stop Ray") as (process, child):
        process.send_signal(signal.SIGTERM)
        said, warned = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said, warned) == (0, "stopped\n", "")
        until_ended([child])


def test_a_vital_process_that_has_ended_is_named(tmp_path: Path) -> None:
    for name in ("gcs_server", "raylet", "agent"):
        shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    with ExitStack() as stack:
        store, raylet, agent = (
            stack.enter_context(subprocess.Popen([str(tmp_path / name), "60"]))
            for name in ("gcs_server", "raylet", "agent")
        )
        ray = RayProcesses()
        agent.kill()
        agent.wait()
        assert not ray.lost(), "Ray starts its agents again"
        store.kill()  # a zombie, for nobody has waited for it
        assert wait_until(ray.lost) == f"control store (pid {store.pid})"
        later = stack.enter_context(subprocess.Popen([str(tmp_path / "agent"), "60"]))
        ray.kill()
        assert raylet.wait(DEADLINE_S) == later.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_ray_that_ends_leaves_other_children_of_its_process_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        before = psutil.Process().children()
        with subprocess.Popen(["sleep", "60"]) as helper:
            RayProcesses(before).kill_helpers()
            assert helper.wait(DEADLINE_S) == -signal.SIGKILL
            assert other.poll() is None
            other.kill()


def test_what_a_killed_process_leaves_of_its_ray_is_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else: neither another Ray's agent, nor whoever reads the logs. A file that is
    closed meanwhile changes nothing."""
    readlink = os.readlink

    def closing(path: str) -> str:
        if path.endswith("/fd/0"):
            raise FileNotFoundError(path)
        return readlink(path)

    ours, others = tmp_path / "ours", tmp_path / "ours-not"
    tools = tmp_path / "tools"
    for folder in (ours, others, tools):
        folder.mkdir()
    sleep = shutil.which("sleep") or ""
    shutil.copy(sleep, tools / "ray::Agent")
    with ExitStack() as stack:

        def begin(program: str, folder: Path) -> "subprocess.Popen[bytes]":
            with (folder / "log").open("ab") as log:
                words = [program, "60"]
                process = stack.enter_context(subprocess.Popen(words, stdout=log))
            stack.callback(process.kill)
            return process

        agent = begin(str(tools / "ray::Agent"), ours)
        others_agent = begin(str(tools / "ray::Agent"), others)
        reader = begin(sleep, ours)
        monkeypatch.setattr(os, "readlink", closing)
        assert reap(ours) == [agent.pid]
        assert agent.wait(DEADLINE_S) == -signal.SIGKILL
        assert others_agent.poll() is None and reader.poll() is None
