"""The pods of the example for KubeRay as processes, under streams that none may lose."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from chaos.netns import Network, network, unavailable
from deploy.tiny_worker import TINY
from operate.kuberay import head_pod, head_service, worker_pod
from operate.pods import NOBODY, Pod, mounted, short_folder
from operate.rendered import NAMESPACE, Manifest
from operate.streams import DEADLINE_S, PROMPTS, TOKENS, Load, answer, client
from operate.test_kuberay import CONFIG, POD, RAY

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.bench.checkpoints import write_checkpoint

pytestmark = [
    pytest.mark.operate,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(unavailable() is not None, reason=f"no pods here: {unavailable()}"),
]
STREAMS = 16
SPARE_STARTS = 9  # Ray gives a node 30 s to start, on however busy a machine
LONG = 400  # tokens of the stream under which `baton serve` stops
RAY_WORKERS = ("w0", "w1")  # with two CPUs each: less than the example has, as SMALL is
HOSTS = ("h", *RAY_WORKERS, "s")
SMALL = {"threads": 1, "memory-gb": 0.06, "page-size": 16, "max-running": 32}
"""The changes to the file of the ConfigMap: cores and memory of one machine are shared."""


WHOLE = {"prefill-0", "prefill-1", "decode-0", "decode-1"}


@dataclass
class RayPods:
    """The pods of the RayCluster and of the Deployment."""

    net: Network
    folder: Path
    http: httpx.AsyncClient
    token: str
    pods: dict[str, Pod] = field(default_factory=dict)  # by host

    def endpoint(self) -> str:
        return f"http://{self.pods['s'].ip}:8000"

    def make(self, host: str, name: str, role: str, spec: Manifest) -> Pod:
        folder = self.folder / host
        folder.mkdir()
        given = {each: self.folder / each for each in ("model", "keys", "config")}
        service = head_service(RAY)
        dns = {name: self.net.host("h")
               for name in (service, f"{service}.{NAMESPACE}.svc.cluster.local")}  # fmt: skip
        token = {RAY["spec"]["authOptions"]["secretName"]: {"auth_token": self.token}}
        pod = Pod(name, role, spec, self.net.names[host], self.net.host(host), folder, given, dns,
                  token, spare_starts=SPARE_STARTS)  # fmt: skip
        self.pods[host] = pod
        return pod

    def configure(self, **changed: Any) -> None:
        """Write the file of the ConfigMap."""
        settings = CONFIG | SMALL | {"serve": CONFIG["serve"] | changed}
        text = yaml.safe_dump(settings).encode()
        mounted(self.folder / "config", {"baton.yaml": text}, NOBODY)

    async def start_ray(self) -> None:
        """Start the head, and then the workers."""
        await self.pods["h"].start()
        await self.pods["h"].passes("readinessProbe")
        for host in RAY_WORKERS:
            await self.pods[host].start()
            await self.pods[host].passes("readinessProbe")

    async def workers(self) -> dict[str, str]:
        """Return the host of each worker that is ready, by worker."""
        info = (await self.http.get(f"{self.endpoint()}/server_info")).json()
        hosts = {pod.ip: host for host, pod in self.pods.items()}
        return {each["worker_id"]: hosts[each["address"].rpartition(":")[0]]
                for each in info["workers"] if each["ready"]}  # fmt: skip

    async def until(self, *workers: str) -> dict[str, str]:
        """Wait until exactly these workers are ready, and return their hosts."""
        async with asyncio.timeout(DEADLINE_S):
            while (found := await self.workers()).keys() != set(workers):
                await asyncio.sleep(0.2)
        return found


@asynccontextmanager
async def ray_pods() -> AsyncIterator[RayPods]:
    """Start the example: a head, its group of workers, and the Deployment."""
    key = new_key()
    (group,) = RAY["spec"]["workerGroupSpecs"]
    cpus = {"rayStartParams": group["rayStartParams"] | {"num-cpus": "2"}}
    async with client(key) as http:
        with short_folder() as folder, network(*HOSTS) as net:
            cluster = RayPods(net, folder, http, secrets.token_hex(32))
            scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
            write_keys(folder / "keys.json", [Key("test", digest_of(key), scopes)])
            keys = {"keys.json": (folder / "keys.json").read_bytes()}
            mounted(folder / "keys", keys, NOBODY)
            cluster.configure()
            write_checkpoint(folder / "model", TINY)
            for path in (folder / "model").rglob("*"):
                os.chown(path, 0, NOBODY)
                path.chmod(path.stat().st_mode | 0o040)
            cluster.make("h", "baton-ray-head", "head", head_pod(RAY))
            for host in RAY_WORKERS:
                cluster.make(host, f"baton-ray-{host}", "worker", worker_pod(RAY, group | cpus))
            cluster.make("s", "baton-serve", "serve", POD)
            try:
                await cluster.start_ray()  # all nodes, so that each gets a worker of each role
                await cluster.pods["s"].start()
                await cluster.pods["s"].passes("readinessProbe")
                yield cluster
            except BaseException:
                for pod in cluster.pods.values():
                    print(f"{pod.name}: {pod.process and pod.process.poll()}\n{pod.told()}")
                raise
            finally:
                for pod in cluster.pods.values():
                    pod.kill()


async def test_no_stream_is_lost_while_pods_of_the_example_end() -> None:
    async with ray_pods() as cluster:
        await cluster.until(*WHOLE)
        right = [await answer(cluster, number) for number in range(PROMPTS)]
        await replace_a_ray_worker(cluster, right)
        await apply_the_file(cluster)
        serve = cluster.pods["s"]
        begun = asyncio.Event()
        stream = asyncio.create_task(answer(cluster, 0, LONG, begun))
        await asyncio.wait_for(begun.wait(), DEADLINE_S)
        took = await serve.stop()
        assert (await stream)[:TOKENS] == right[0]
        print(f"{serve.name}: stopped in {took:.1f} s")
        await serve.start()
        await serve.passes("readinessProbe")
        await cluster.until(*WHOLE - {"decode-1"})
        assert await answer(cluster, 1) == right[1]
        for pod in cluster.pods.values():
            assert await pod.ask("livenessProbe"), pod.log


async def replace_a_ray_worker(cluster: RayPods, right: list[list[int]]) -> None:
    """Delete a pod of the RayCluster under streams, and make the next one, as KubeRay does."""
    load = Load(cluster, right, STREAMS)
    running = asyncio.create_task(load.run())
    try:
        await load.more(STREAMS)
        pod = cluster.pods[(await cluster.workers())["decode-0"]]
        took = await pod.stop(0, 1)  # Ray ends with 1, as actors remain after its 30 s
        await load.more(2 * STREAMS)
    finally:
        load.stopping = True  # a node has 30 s to start, which streams on shared cores would take
        await running
    print(f"{pod.name}: stopped in {took:.1f} s", flush=True)
    print(f"{load.ended} streams of {TOKENS} tokens, {len(load.lost)} lost", flush=True)
    assert not load.lost, load.lost
    await pod.start()
    await pod.passes("readinessProbe")
    await cluster.until(*WHOLE)
    assert [await answer(cluster, number) for number in range(PROMPTS)] == right


async def apply_the_file(cluster: RayPods) -> None:
    """Change the ConfigMap, and apply it in the Deployment's pod, twice."""
    cluster.configure(decode=1)
    apply = ("baton", "apply", "-f", "/baton/config/baton.yaml")
    said = await cluster.pods["s"].inside(*apply)
    assert "decode: 2 -> 1" in said, said
    await cluster.until(*WHOLE - {"decode-1"})
    again = await cluster.pods["s"].inside(*apply)
    assert "->" not in again, again
