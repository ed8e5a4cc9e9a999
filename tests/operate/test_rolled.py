"""The chart's pods as processes, each in a network of its own, under streams that none may lose."""

import asyncio
import base64
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from chaos.netns import Network, network, unavailable
from deploy.tiny_worker import TINY
from operate.pods import Pod, mounted, short_folder
from operate.rendered import ROLES, Rendered, render
from operate.streams import DEADLINE_S, PROMPTS, TOKENS, Load, answer, client

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.bench.checkpoints import write_checkpoint
from baton.rpc.credentials import CERT, Credentials

pytestmark = [
    pytest.mark.operate,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(unavailable() is not None, reason=f"no pods here: {unavailable()}"),
]
STREAMS = 64
VALUES = Path(__file__).with_name("rolled.yaml")
HOSTS = ("r0", "r1", "p0", "p1", "d0", "d1", "d2")


@dataclass
class Cluster:
    """The pods of a release, and the Service of its routers."""

    rendered: Rendered
    net: Network
    folder: Path
    given: dict[str, Path]
    http: httpx.AsyncClient
    pods: list[Pod] = field(default_factory=list)

    def of(self, role: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.role == role]

    async def add(self, role: str) -> Pod:
        """Start the next pod of a role."""
        number = len(self.of(role))
        host = f"{role[0]}{number}"
        folder = self.folder / host
        folder.mkdir()
        stateful = self.rendered.of_role("StatefulSet", role)["metadata"]["name"]
        pod = Pod(f"{stateful}-{number}", role, self.rendered.pod(role)["spec"],
                  self.net.names[host], self.net.host(host), folder, self.given,
                  self.dns())  # fmt: skip
        self.pods.append(pod)
        await pod.start()
        return pod

    def dns(self) -> dict[str, str]:
        """Return the addresses of the routers by the names that a headless Service gives them."""
        service = self.rendered.of_role("Service", "router")["metadata"]
        tail = f"{service['name']}.{service.get('namespace', 'serving')}.svc.cluster.local"
        return {f"{service['name']}-{n}.{tail}": self.net.host(f"r{n}") for n in range(2)}

    def endpoint(self) -> str:
        """Return a router that takes requests, as the Service of the routers chooses one."""
        router = random.choice([pod for pod in self.of("router") if not pod.leaving])
        return f"http://{router.ip}:{router.port('http')}"

    async def known_workers(self) -> set[str]:
        info = (await self.http.get(f"{self.endpoint()}/server_info")).json()
        return {worker["worker_id"] for worker in info["workers"]}


@asynccontextmanager
async def release() -> AsyncIterator[Cluster]:
    """Start the pods of the chart's release, two of each role, and end them."""
    key = new_key()
    async with client(key) as http, pods(key, http) as cluster:
        yield cluster


@asynccontextmanager
async def pods(key: str, http: httpx.AsyncClient) -> AsyncIterator[Cluster]:
    """Start the pods with one API key. The volume of weights has a model of two layers."""
    rendered = render("--values", VALUES)
    (made,) = rendered.kinds("Secret")
    authority = {name: base64.b64decode(value) for name, value in made["data"].items()}
    with short_folder() as folder, network(*HOSTS) as net:
        scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
        write_keys(folder / "keys.json", [Key("test", digest_of(key), scopes)])
        group = rendered.pod("router")["spec"]["securityContext"]["fsGroup"]
        write_checkpoint(folder / "weights/tiny", TINY)
        for path in (folder / "weights").rglob("*"):
            os.chown(path, 0, group)
            path.chmod(path.stat().st_mode | 0o040)
        keys = {"keys.json": (folder / "keys.json").read_bytes()}
        given = {
            "authority": mounted(folder / "authority", authority, group),
            "keys": mounted(folder / "secret", keys, group),
            "model": folder / "weights",
        }
        cluster = Cluster(rendered, net, folder, given, http)
        try:
            await asyncio.gather(*(cluster.add(role) for role in ROLES))
            await asyncio.gather(*(cluster.add(role) for role in ROLES))
            await asyncio.gather(*(pod.passes("readinessProbe") for pod in cluster.pods))
            yield cluster
        except BaseException:
            for pod in cluster.pods:
                print(f"{pod.name}: {pod.process and pod.process.poll()}\n{pod.told()}")
            raise
        finally:
            for pod in cluster.pods:
                pod.kill()


async def restarted(pod: Pod) -> float:
    """Replace a pod as its stateful set does; return the seconds that its stop took."""
    took = await pod.stop()
    await pod.start()
    await pod.passes("readinessProbe")
    return took


async def test_no_stream_is_lost_while_every_pod_is_replaced_and_one_is_added() -> None:
    async with release() as cluster:
        right = [await answer(cluster, number) for number in range(PROMPTS)]
        load = Load(cluster, right, STREAMS)
        running = asyncio.create_task(load.run())
        try:
            for role in ("decode", "prefill", "router"):
                for pod in reversed(cluster.of(role)):  # a stateful set begins with the last
                    before = load.ended
                    took = await restarted(pod)
                    print(f"{pod.name}: stopped in {took:.1f} s, {load.ended - before} answers",
                          flush=True)  # fmt: skip
                    assert not load.lost and not running.done(), load.lost
            added = await cluster.add("decode")
            assert certified_name(added) == f"{added.name}.decode.baton.baton"
            await added.passes("readinessProbe")
            async with asyncio.timeout(DEADLINE_S):
                while added.name not in await cluster.known_workers():
                    await asyncio.sleep(0.1)
            await load.more(STREAMS)
            await added.stop()
            assert added.name not in await cluster.known_workers()
        finally:
            load.stopping = True
            await running
        assert not load.lost, load.lost
        print(f"{load.ended} streams of {TOKENS} tokens, none lost")
        assert load.ended >= 2 * STREAMS
        for pod in cluster.pods:
            if pod is not added:
                assert await pod.ask("livenessProbe"), pod.log


def certified_name(pod: Pod) -> str:
    """Return the name in a pod's certificate, which only its user reads."""
    folder = pod.volume("certificate")
    assert (folder / CERT).stat().st_uid == pod.spec["securityContext"]["runAsUser"]
    return Credentials(folder).identity.dns_name
