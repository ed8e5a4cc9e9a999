"""A detached cluster: it outlives the command, its process group and its own supervisor."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from click.testing import CliRunner
from deploy.some_ray import some_ray
from deploy.tiny_worker import GRID

from baton.client.async_client import AsyncClient
from baton.core.sampling_params import SamplingParams
from baton.deploy.client.control_client import ControlClient, local_control
from baton.deploy.cluster import ray_start
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.record import Detached, RecordStore
from baton.deploy.commands.apply import apply
from baton.deploy.errors import DeployError, NotRunning
from baton.deploy.files.state_file import newest
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

pytestmark = pytest.mark.chaos  # by its length

DEADLINE_S = 240.0
STREAMS = 64
TOKENS = 400
BATON = [sys.executable, "-m", "baton.cli.main"]
WORKERS = ["--decode", "2", "--memory-gb", "0.25", "--threads", "1", "--http-port", "0",
           "--grpc-port", "0", "--max-running", "32"]  # fmt: skip


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield os.environ | {"TMPDIR": str(tmp_path)}
    for own in tmp_path.glob("baton-*/*/s*.json"):  # only of a test that failed
        pid = json.loads(own.read_text())["pid"]
        psutil.Process(pid).kill()


def serve(env: dict[str, str], model: Path, name: str) -> "subprocess.Popen[str]":
    """Return the command, which leads a process group of its own, once it has begun to start."""
    words = [*BATON, "serve", "--model", str(model), "--detach", "--cluster", name, *WORKERS]
    command = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert command.stdout is not None
    assert any("Ray" in line for line in iter(command.stdout.readline, ""))
    return command


def wait_until(reached: Any, what: str) -> Any:
    until = time.monotonic() + DEADLINE_S
    while True:
        found = reached()
        if found:
            return found
        assert time.monotonic() < until, f"not in {DEADLINE_S:g} s: {what}"
        time.sleep(0.2)


def served(name: str) -> ControlClient | None:
    try:
        return local_control(name)
    except NotRunning:
        return None


def processes_of(control: ControlClient) -> list[psutil.Process]:
    ray = psutil.Process(control.state.pid)
    return [ray, *ray.children(recursive=True)]


def supervisor_of(control: ControlClient) -> psutil.Process | None:
    for process in processes_of(control):
        try:
            if "ray::SupervisorActor" in process.cmdline()[:1]:
                return process
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def running_in(env: dict[str, str]) -> list[psutil.Process]:
    """Return the processes that were started with this environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR") == env["TMPDIR"]:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return found


async def answer(client: AsyncClient, prompt: list[int]) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    return [token async for part in client.stream(prompt, params) for token in part.token_ids]


def test_no_stream_is_lost_with_the_command_or_the_supervisor(
    env: dict[str, str], tiny: Path, rng: random.Random
) -> None:
    shared_memory = set(os.listdir("/dev/shm"))
    command = serve(env, tiny, "one")
    os.killpg(command.pid, signal.SIGKILL)  # while the cluster starts
    command.communicate(timeout=DEADLINE_S)
    assert command.returncode == -signal.SIGKILL
    control = wait_until(lambda: served("one"), "the cluster serves")
    there = processes_of(control)
    assert all(os.getsid(each.pid) != command.pid for each in there)

    asyncio.run(streams_survive(control, rng))

    described = control.describe()
    assert described["phase"] == "serving"
    members = described["members"]
    assert sorted(members) == ["decode-0", "decode-1", "prefill-0", "router-0"]
    assert {each["restarts"] for each in members.values()} == {0}, "nobody else was disturbed"
    grown = subprocess.run(
        [*BATON, "scale", "decode=3", "prefill=1", "--cluster", "one"], env=env, text=True,
        capture_output=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert "decode: 3 (decode-0, decode-1, decode-2)" in grown.stdout
    there = processes_of(control)
    subprocess.run([*BATON, "stop", "--cluster", "one"], env=env, timeout=DEADLINE_S, check=True)
    _, alive = psutil.wait_procs(there, timeout=30)
    assert not alive
    with pytest.raises(NotRunning):
        newest(starting=True)
    assert not list(Path(env["TMPDIR"]).glob("baton-*/cluster-*"))
    assert not [key for key in Path(env["TMPDIR"]).rglob("*") if key.name in ("tls.key", "token")]
    assert set(os.listdir("/dev/shm")) <= shared_memory


async def streams_survive(control: ControlClient, rng: random.Random) -> None:
    """Kill the supervisor under streams, and check every token of each."""
    prompts = [[rng.randrange(5, 290) for _ in range(rng.randrange(4, 40))] for _ in range(STREAMS)]
    async with AsyncClient(control.state.grpc_address) as client:
        calm = await asyncio.gather(*(answer(client, prompt) for prompt in prompts))
        running = [asyncio.create_task(answer(client, prompt)) for prompt in prompts]
        await asyncio.sleep(0.5)  # the streams are under way
        first = await asyncio.to_thread(wait_until, lambda: supervisor_of(control), "a supervisor")
        first.kill()
        killed_under = sum(not task.done() for task in running)
        assert killed_under == STREAMS, f"{killed_under} of {STREAMS} still ran: raise TOKENS"
        assert await asyncio.gather(*running) == calm
    assert all(len(tokens) == TOKENS for tokens in calm)

    wait_until(lambda: answers_again(control), "Ray starts the supervisor again")
    assert supervisor_of(control) != first


def answers_again(control: ControlClient) -> bool:
    try:
        return bool(control.describe()["phase"] == "serving")
    except DeployError:
        return False


def test_a_detached_cluster_follows_its_file(
    env: dict[str, str], tiny: Path, tmp_path: Path
) -> None:
    file = tmp_path / "baton.yaml"
    plain = f"model: {tiny}\nmemory-gb: 0.25\nthreads: 1\nserve: {{ http-port: 0, grpc-port: 0 }}\n"
    file.write_text(plain)

    def applied() -> list[str]:
        words = ["--file", str(file), "--cluster", "three", "--drain", "5"]
        done = CliRunner().invoke(apply, words, catch_exceptions=False, standalone_mode=False)
        return done.output.splitlines()

    words = [*BATON, "serve", "-f", str(file), "--detach", "--cluster", "three"]
    subprocess.run(words, env=env, timeout=DEADLINE_S, check=True)
    control = local_control("three")
    assert applied() == ["nothing to change"]
    before = pids_of(control)
    file.write_text(plain.replace("serve: {", "serve: { decode: 2, policy: least_load,"))
    told = applied()
    assert [line.partition("  #")[0] for line in told[:2]] == [
        "decode: 1 -> 2", "policy: prefix_aware -> least_load"
    ]  # fmt: skip
    after = pids_of(control)
    assert after.keys() == before.keys() | {"decode-1"}
    assert {name for name in before if after[name] != before[name]} == {"router-0"}
    assert applied() == ["nothing to change"]
    first = wait_until(lambda: supervisor_of(control), "a supervisor")
    first.kill()
    wait_until(lambda: answers_again(control), "Ray starts the supervisor again")
    assert applied() == ["nothing to change"]  # the next one knows what was applied
    assert pids_of(control) == after
    there = processes_of(control)
    subprocess.run([*BATON, "stop", "--cluster", "three"], env=env, timeout=DEADLINE_S, check=True)
    _, alive = psutil.wait_procs(there, timeout=30)
    assert not alive


def pids_of(control: ControlClient) -> dict[str, int]:
    """Return the processes of a cluster's router and workers."""
    info = httpx.get(f"{control.state.http_url}/server_info", timeout=DEADLINE_S).json()
    return {w["worker_id"]: w["pid"] for w in info["workers"]} | {"router-0": info["router"]["pid"]}


def test_a_start_that_is_given_up_leaves_nothing(env: dict[str, str], tiny: Path) -> None:
    command = serve(env, tiny, "two")
    starter = wait_until(lambda: newest_starting("two"), "the supervisor starts")
    there = [starter, *starter.children(recursive=True)]
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 130
    _, alive = psutil.wait_procs(there, timeout=30)
    assert not alive
    assert not list(Path(env["TMPDIR"]).glob("baton-*/cluster-*"))


def newest_starting(name: str) -> psutil.Process | None:
    try:
        return psutil.Process(newest(name, starting=True).pid)
    except NotRunning:
        return None


def test_a_start_that_fails_says_why_and_leaves_nothing(env: dict[str, str], tiny: Path) -> None:
    words = [*BATON, "serve", "--model", str(tiny), "--detach", *WORKERS, "--memory-gb", "0.001"]
    failed = subprocess.run(
        words, env=env, text=True, capture_output=True, timeout=DEADLINE_S, check=False
    )
    assert failed.returncode == 1
    assert "prefill-0: " in failed.stderr and "memory" in failed.stderr, failed.stderr
    wait_until(lambda: not running_in(env), "no process is left")
    assert not list(Path(env["TMPDIR"]).glob("baton-*/cluster-*"))


def test_a_later_supervisor_keeps_the_ports_of_routers_that_die(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors run in this process here, one after the other, as Ray runs them in an actor."""
    engine = EngineConfig(tiny, page_size=GRID, max_running=4, memory_bytes=64 << 20)
    with some_ray(tmp_path, "127.0.0.1", "--num-cpus", "3") as there:
        for name, value in there.env.items():
            monkeypatch.setenv(name, value)
        config = ClusterConfig(
            engine, RouterConfig(tiny), name="kept", threads=1, ray_address=there.address
        )
        ray_start.connect(ray_start.RayConfig(there.address, namespace="kept"))
        try:
            detached = Detached(RecordStore("kept"), tmp_path)
            first = Cluster(config, detached=detached)
            first.up()
            first._held.close()  # as the end of its process does
            later = Cluster(config, detached=detached)
            later.up()
            assert later.http_url == first.http_url
            assert first.wiring.listener and later.wiring.listener is None  # that socket has ended
            # Nobody has called there: no connection that has ended occupies it.
            address = ("127.0.0.1", int(later.grpc_address.rpartition(":")[2]))
            later.look_after()  # the router listens: there is nothing to take yet
            router = later.routers.pids["router-0"]
            later.routers.end()
            wait_until(lambda: not psutil.pid_exists(router), "the router has ended")
            later.look_after()
            with socket.socket() as by_chance, pytest.raises(OSError, match="in use"):
                by_chance.bind(address)
            later.down(None)
            with socket.socket() as anyone:
                anyone.bind(address)
        finally:
            ray_start.leave()
