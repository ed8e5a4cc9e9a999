"""A cluster that is started by hand, without Ray: a router and workers, each on a host of its own.

The hosts are network namespaces, so that a byte between them passes a link that can be read.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from chaos.netns import network, unavailable
from deploy.tiny_worker import DEADLINE_S, GRID, Client, prompt, served
from kit.polling import until_answered
from kit.ports import free_port

from baton.core.address import join_host_port
from baton.deploy.certs.authority_folder import AuthorityFolder
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.cluster

BATON = (sys.executable, "-m", "baton.cli.main")
START_S = 180.0
ENGINE = ("--page-size", str(GRID), "--memory-gb", "0.06", "--threads", "1", "--max-running", "4")


def certificates(folder: Path) -> AuthorityFolder:
    authority = AuthorityFolder.create(folder, "hand")
    for role, name in (("router", "router-0"), ("prefill", "prefill-0"), ("decode", "decode-0")):
        authority.issue(ProcessRole(role), name)
    return authority


@contextmanager
def running(*command: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    # A test of NIXL in this process leaves its own interface in the environment.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    with subprocess.Popen(command, text=True, env=inherited | environment) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


@asynccontextmanager
async def by_hand(
    tiny: Path, folder: Path, hosts: dict[str, str], inside: dict[str, list[str]], *options: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Start a router and two workers; yield a client of the router.

    hosts: the address of each by its role. inside: words before its command. options: of workers.
    """
    authority = certificates(folder / "ca")

    def words(role: str) -> list[str]:
        credentials = authority.folder_of(ProcessRole(role), f"{role}-0")
        return [*inside[role], *BATON, "router" if role == "router" else "worker",
                "--model", str(tiny), "--credentials", str(credentials), "--insecure",
                "--grpc-port", "0"]  # fmt: skip

    internal_port, http_port = free_port(), free_port()
    internal = join_host_port(hosts["router"], internal_port)
    with ExitStack() as stack:
        listen = ["--host", hosts["router"], "--http-port", str(http_port)]
        reach = ["--internal-host", hosts["router"], "--internal-port", str(internal_port)]
        started = [stack.enter_context(running(*words("router"), *listen, *reach))]
        for role in ("prefill", "decode"):
            place = ["--role", role, "--worker-id", f"{role}-0", "--router", internal,
                     "--peer-host", hosts[role], "--http", "0"]  # fmt: skip
            command = [*words(role), *place, *ENGINE, *options]
            started.append(stack.enter_context(running(*command, UCX_TLS="tcp,self")))
        url = f"http://{join_host_port(hosts['router'], http_port)}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            await ready(http, started)
            yield http


async def ready(http: httpx.AsyncClient, started: "list[subprocess.Popen[str]]") -> None:
    """Wait until the router could answer a request."""

    async def is_ready() -> bool:
        assert [process.poll() for process in started] == [None] * len(started)
        with contextlib.suppress(httpx.TransportError):
            return (await http.get("/ready")).status_code == 200
        return False

    await until_answered(is_ready)


async def workers(http: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    info = (await http.get("/server_info")).json()
    return {worker["worker_id"]: worker for worker in info["workers"]}


async def expected(tiny: Path, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Return the tokens of one engine that does all by itself."""
    async with served(tiny) as alone:
        return [(await alone.generate(ids, new))["output_ids"] for ids in prompts]


async def answers(http: httpx.AsyncClient, prompts: list[list[int]], new: int) -> list[list[int]]:
    client = Client(http, "")
    found = await asyncio.gather(*(client.generate(ids, new) for ids in prompts))
    return [answer["output_ids"] for answer in found]


@pytest.mark.skipif(unavailable() is not None, reason=f"no hosts of our own: {unavailable()}")
@pytest.mark.parametrize(
    ("channel", "options"), [("grpc", ()), ("nixl", ("--nixl-interface", "eth0"))]
)
async def test_three_hosts(
    channel: str, options: tuple[str, ...], tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    prompts = [prompt(rng, rng.randrange(200, 300)) for _ in range(4)]
    right = await expected(tiny, prompts, 24)
    names = {"router": "r", "prefill": "p", "decode": "d"}
    with network(*names.values()) as net:
        hosts = {role: net.host(name) for role, name in names.items()}
        inside = {role: ["ip", "netns", "exec", net.names[name]] for role, name in names.items()}
        async with by_hand(tiny, tmp_path, hosts, inside, *options) as http:
            before = net.carried("p")
            assert await answers(http, prompts, 24) == right
            there = await workers(http)
            assert {each.partition(":")[0] for each in there["decode-0"]["channels"].values()} == {
                channel
            }
            for name, worker in there.items():
                assert worker["address"].startswith(f"{hosts[worker['role']]}:"), name
            state = 4 * 1024  # the SSM state of one request alone: 4 heads x 16 x 8 float32
            assert net.carried("p") - before > len(prompts) * state


async def test_ipv6(tiny: Path, tmp_path: Path, rng: random.Random) -> None:
    prompts = [prompt(rng, 100)]
    right = await expected(tiny, prompts, 8)
    hosts = dict.fromkeys(("router", "prefill", "decode"), "::1")
    async with by_hand(tiny, tmp_path, hosts, {role: [] for role in hosts}) as http:
        assert await answers(http, prompts, 8) == right
        assert (await workers(http))["prefill-0"]["address"].startswith("[::1]:")


def test_a_router_needs_the_certificate_of_a_router(tiny: Path, tmp_path: Path) -> None:
    authority = certificates(tmp_path / "ca")
    credentials = authority.folder_of(ProcessRole.DECODE, "decode-0")
    done = subprocess.run(
        [*BATON, "router", "--model", str(tiny), "--credentials", str(credentials),
         "--http-port", "0", "--grpc-port", "0"],
        capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "has the certificate of decode 'decode-0'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_that_listens_everywhere_says_where_its_peers_find_it(
    tiny: Path, tmp_path: Path
) -> None:
    authority = certificates(tmp_path / "ca")
    credentials = authority.folder_of(ProcessRole.PREFILL, "prefill-0")
    done = subprocess.run(
        [*BATON, "worker", "--model", str(tiny), "--role", "prefill", "--worker-id", "prefill-0",
         "--credentials", str(credentials), "--peer-host", "0.0.0.0", "--http", "0", *ENGINE],
        capture_output=True, text=True, timeout=START_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--advertise-host" in done.stderr and "Traceback" not in done.stderr
