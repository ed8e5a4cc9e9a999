"""A walk over every listening socket of a cluster on one machine: who else can reach which."""

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos import netns
from e2e import listeners as sockets
from e2e.clients import http_greedy, prompts_of
from e2e.listeners import Listener, listeners

from baton.deploy.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="another user's processes need root"),
    pytest.mark.skipif(sockets.unavailable() is not None, reason=str(sockets.unavailable())),
    pytest.mark.parametrize("running_cluster", ["auto", "grpc"], indirect=True, scope="session"),
]

STRANGER = Path(__file__).with_name("stranger.py")
DEADLINE_S = 240.0
ROOT, NOBODY = 0, 65534
REFUSED = {"UNAUTHENTICATED", "PERMISSION_DENIED"}
WORKERS = ("ray::WorkerHost", "ray::RouterHost")


def strange(user: int, *by: str, **addresses: Iterable[Any]) -> Any:
    """Return what a process of `user` finds. by: the command to run it with. addresses: `reach` and
    `tcp`, pairs of host and port; `unix`, paths."""
    done = subprocess.run(
        [*by, sys.executable, str(STRANGER), str(user)],
        input=json.dumps({"reach": (), "tcp": (), "unix": ()} | addresses),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    return json.loads(done.stdout)


async def opened(cluster: Cluster, rng: random.Random) -> list[Listener]:
    """Return the sockets of a cluster that has handed over a request: its channels are open."""
    await http_greedy(cluster, prompts_of(rng, [20, 30, 40, 50]), 4)
    return await asyncio.to_thread(listeners)


def of_clients(cluster: Cluster) -> set[int]:
    """Return the ports that are there for clients."""
    return {int(address.rpartition(":")[2]) for address in (cluster.http_url, cluster.grpc_address)}


def ports(found: Iterable[Listener]) -> set[int]:
    return {each.port for each in found if each.kind == "tcp"}


async def test_everything_listens_on_loopback_or_in_a_folder_of_this_user(
    cluster: Cluster, rng: random.Random
) -> None:
    found = await opened(cluster, rng)
    assert {"raylet", "gcs_server", *WORKERS} <= {each.process for each in found}
    for each in found:
        if each.kind in ("tcp", "udp"):
            assert each.host in ("127.0.0.1", "::1"), each
        elif not each.address.startswith("@"):
            assert any(p.stat().st_mode & 0o077 == 0 for p in Path(each.address).parents), each
        else:
            assert each.kind == "u_dgr" and each.process in ("test", *WORKERS), each


async def test_another_network_namespace_reaches_nothing(
    cluster: Cluster, rng: random.Random
) -> None:
    if (why := netns.unavailable()) is not None:
        pytest.skip(why)
    found = ports(await opened(cluster, rng))
    with netns.network("stranger") as net, socket.create_server(("0.0.0.0", 0)) as open_door:
        namespace = net.names["stranger"]
        door = open_door.getsockname()[1]
        ours = [a.address for every in psutil.net_if_addrs().values() for a in every
                if a.family is socket.AF_INET and not a.address.startswith("127.")]  # fmt: skip
        netns.route(net, "stranger")
        tried = [(host, port) for host in ours for port in (*found, door)]
        answers = await asyncio.to_thread(
            strange, ROOT, "ip", "netns", "exec", namespace, reach=tried
        )
    assert set(answers["reached"]) == {f"{host}:{door}" for host in ours}, (
        "and the open door is reached"
    )


async def test_another_user_of_this_machine_is_refused(
    cluster: Cluster, rng: random.Random
) -> None:
    found = await opened(cluster, rng)
    tcp = {each.port: each for each in found if each.kind == "tcp" and each.process != "test"}
    unix = {each.address for each in found if each.address.startswith("/")}
    assert unix
    tried = [("127.0.0.1", port) for port in tcp]
    answers = await asyncio.to_thread(strange, NOBODY, tcp=tried, unix=sorted(unix))
    assert set(answers["unix"].values()) == {"PermissionError"}, answers["unix"]
    ucx, rays_metrics = set[int](), set[int]()
    for address, answer in answers["tcp"].items():
        each = tcp[int(address.rpartition(":")[2])]
        if each.port in of_clients(cluster) and not asks_for_keys(cluster):
            continue
        kind = judged(each, answer)
        if kind == "metrics" and each.process not in WORKERS:  # none of ours
            rays_metrics.add(each.port)
        elif kind == "ucx":
            ucx.add(each.port)
        else:
            assert kind == "refused", (each, answer)
    assert 0 < len(rays_metrics) <= 4, "Ray's metrics ports, which ask for no token"
    channels = used_channels(cluster)
    assert len(channels) == 1 and bool(ucx) == (channels == {"nixl"}), (ucx, channels)
    assert asks_for_keys(cluster) is not bool(ucx), "one cluster has no other exception"


def asks_for_keys(cluster: Cluster) -> bool:
    return cluster.config.router.api_keys is not None


def judged(each: Listener, answer: dict[str, Any]) -> str:
    """Say what one address is to a stranger: `refused`, `metrics`, `ucx` or `open`."""
    assert answer["reached"], f"{each} is gone"
    codes = set(answer["grpc"].values())
    status = answer["http"].split(" ")[1:2]
    if "OK" in codes:
        return "open"
    if status == ["200"]:
        return "metrics" if "# HELP" in answer["http"] or "# TYPE" in answer["http"] else "open"
    if codes & REFUSED or status in (["401"], ["403"]) or answer["tls"]:
        return "refused"
    nothing = not status and codes <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    return "ucx" if nothing and each.process == "ray::WorkerHost" else "open"


def used_channels(cluster: Cluster) -> set[str]:
    """Return the names of the channels between the workers."""
    workers = cluster.router.server_info()["workers"]
    return {str(said).split()[0].strip(":,(") for w in workers for said in w["channels"].values()}
