"""A cluster in the middle of an upgrade: some of its processes speak the previous protocol."""

import random
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from deploy.test_by_hand import (
    BATON,
    ENGINE,
    answers,
    certificates,
    expected,
    ready,
    running,
    workers,
)
from deploy.tiny_worker import DEADLINE_S, prompt
from google.protobuf import message_factory
from kit.ports import free_port
from previous_release import previous
from previous_release.previous import MAJOR, MINOR, services, through

from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import WorkerStatus
from baton.rpc.handshake import MINORS_APART
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.cluster

PREVIOUS = (sys.executable, str(Path(previous.__file__).with_name("main.py")))
ROLES = ("router", "prefill", "decode")


@asynccontextmanager
async def upgraded_but(
    older: set[str], channel: str, tiny: Path, folder: Path
) -> AsyncIterator[httpx.AsyncClient]:
    """Start a router and two workers, those of `older` as of the previous release; yield a
    client of the router."""
    authority = certificates(folder / "ca")
    http_port, internal_port = free_port(), free_port()
    with ExitStack() as stack:
        started = []
        for role in ROLES:
            credentials = authority.folder_of(ProcessRole(role), f"{role}-0")
            command = [*(PREVIOUS if role in older else BATON),
                       "router" if role == "router" else "worker", "--model", str(tiny),
                       "--credentials", str(credentials), "--grpc-port", "0"]  # fmt: skip
            if role == "router":
                command += ["--http-port", str(http_port), "--internal-port", str(internal_port)]
            else:
                command += ["--role", role, "--worker-id", f"{role}-0", "--http", "0",
                            "--channel", channel, *ENGINE,
                            "--router", f"127.0.0.1:{internal_port}"]  # fmt: skip
            started.append(stack.enter_context(running(*command)))
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{http_port}", timeout=DEADLINE_S
        ) as http:
            await ready(http, started)
            yield http


@pytest.mark.parametrize(
    ("older", "channel"),
    [
        ({"router"}, "nixl"),
        ({"prefill"}, "grpc"),
        ({"decode"}, "grpc"),
        ({"prefill", "decode"}, "nixl"),
    ],
)
async def test_processes_of_two_releases_serve_together(
    older: set[str], channel: str, tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    prompts = [prompt(rng, rng.randrange(100, 200)) for _ in range(4)]
    right = await expected(tiny, prompts, 24)
    async with upgraded_but(older, channel, tiny, tmp_path) as http:
        assert await answers(http, prompts, 24) == right
        assert (await http.post("/flush_cache")).status_code == 200
        for name, worker in (await workers(http)).items():
            assert worker["state"] == "ready" and worker["max_running"] == 4, name
            assert all(each.startswith(f"{channel}:") for each in worker["channels"].values())
            assert (await http.get(worker["metrics_path"])).status_code == 200
        assert await answers(http, prompts, 24) == right


def test_the_frozen_protocol_is_the_one_before_this() -> None:
    assert (MAJOR, MINOR) == (PROTOCOL_MAJOR, PROTOCOL_MINOR - MINORS_APART), (
        "freeze the descriptors of the release before this one: CONTRIBUTING.md says how"
    )


def test_what_the_previous_release_does_not_know_is_lost_on_the_way() -> None:
    """The tests above would prove nothing if it were not."""
    status = services()["baton.v1.Worker"]["Status"].output_type
    translate = through(message_factory.GetMessageClass(status))
    sent = WorkerStatus(running=3, queued_tokens=2)
    assert WorkerStatus.FromString(translate(sent.SerializeToString())) == WorkerStatus(running=3)
