"""A cluster on a Ray of several hosts, whose links have a rate and a delay, and break."""

import asyncio
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chaos.checked_load import checked_load, questions
from chaos.netns import network, slow_network, unavailable
from chaos.ray_hosts import DEADLINE_S, RayHosts, ray_hosts
from chaos.served_hosts import ServedHosts, baton, client_of, serve_command, served_hosts
from deploy.tiny_worker import TINY, prompt, served

from baton.bench.checkpoints import write_checkpoint
from baton.bench.cluster.scrape import total

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=f"no hosts: {unavailable()}")

NIXL = ("--nixl-interface", "eth0")
LABELS = ("--prefill-label", "role=p", "--decode-label", "role=d")
LEASE_S = 2.0
STREAMS = 32
NEW = 120  # tokens of an answer
ASK_S = 3.0  # a host that is cut off answers nothing
LOST_S = 55.0
"""More than twice what docs/hosts.md promises; by its own settings, Ray waits for a minute."""
STATE = 2 * 1024
"""Bytes of one request's SSM state alone: 4 heads x 16 x 8 float32."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: the names of Ray's sockets have to fit in 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="bt", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


async def expected(tiny: Path, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Return the tokens of one engine that does all by itself."""
    async with served(tiny) as alone:
        return [(await alone.generate(ids, new))["output_ids"] for ids in prompts]


@pytest.mark.parametrize(
    ("channel", "options"), [("grpc", ()), pytest.param("nixl", NIXL, marks=pytest.mark.chaos)]
)
async def test_state_goes_over_the_link(
    channel: str, options: tuple[str, ...], tiny: Path, short: Path, rng: random.Random
) -> None:
    prompts = [prompt(rng, rng.randrange(200, 300)) for _ in range(4)]
    right = await expected(tiny, prompts, 24)
    nodes = nodes_of("r", "p", "d")
    with slow_network(*nodes, delay_ms=2, rate="100mbit") as net, ray_hosts(
        net, short, nodes
    ) as hosts:  # fmt: skip
        both = {"prefill-0", "decode-0"}
        async with served_hosts(hosts, tiny, both, *LABELS, *options) as cluster:
            before = net.carried("p")
            assert [await cluster.generate(ids, 24) for ids in prompts] == right
            there = await cluster.workers()
            assert net.carried("p") - before > len(prompts) * STATE
            channels = there["decode-0"]["channels"].values()
            assert {each.partition(":")[0] for each in channels} == {channel}
            for name, host in (("prefill-0", "p"), ("decode-0", "d")):
                assert await cluster.host_of(name) == host


@pytest.mark.chaos
async def test_ray_counts_a_silent_host_as_lost_by_the_settings_of_the_page(short: Path) -> None:
    nodes = nodes_of("r", "d")
    with network(*nodes) as net, ray_hosts(net, short, nodes) as hosts:
        await net.cut("d")
        await asyncio.to_thread(hosts.wait_for, 1, LOST_S)


@pytest.mark.chaos
@pytest.mark.parametrize("options", [(), NIXL], ids=["grpc", "nixl"])
async def test_each_host_is_cut_off_in_turn(
    options: tuple[str, ...], tiny: Path, short: Path, rng: random.Random
) -> None:
    """Ray does not count a host as lost in so short a time: its processes stay where they are."""
    asked = await questions(tiny, rng, STREAMS, NEW)
    nodes = nodes_of("r", "p0", "p1", "d0", "d1")
    async with five_hosts(nodes, tiny, short, *options) as (hosts, cluster):
        before = await cluster.workers()
        async with checked_load(cluster, asked, STREAMS) as load:
            for name in ("prefill-0", "decode-0", "prefill-1", "decode-1"):
                await load.more(STREAMS)
                host = await cluster.host_of(name)
                await hosts.net.cut(host)
                await cluster.until(partial(is_gone, name=name))
                await load.more(STREAMS)
                await hosts.net.mend(host)
                await cluster.until(lambda now: now.keys() == before.keys())
            load.check()
            await hosts.net.cut("r")
            await asyncio.sleep(3 * LEASE_S)  # until router and workers have lost each other
            await hosts.net.mend("r")
            await cluster.until(lambda now: now.keys() == before.keys())
            await load.more(STREAMS)
        load.check()  # requests wait for workers longer than the router was alone
        after = await cluster.workers()
        assert identities(after) == identities(before)


@pytest.mark.chaos
async def test_a_killed_hosts_workers_return_elsewhere(
    tiny: Path, short: Path, rng: random.Random
) -> None:
    asked = await questions(tiny, rng, STREAMS, NEW)
    nodes = nodes_of("r", "p0", "p1", "d0", "d1", cpus=2)
    async with five_hosts(nodes, tiny, short) as (hosts, cluster):
        before = await cluster.workers()
        async with checked_load(cluster, asked, STREAMS) as load:
            for name in ("decode-0", "prefill-0"):
                await load.more(STREAMS)
                host = await cluster.host_of(name)
                await asyncio.to_thread(hosts.kill, host)
                await cluster.until(partial(is_later, before=before, name=name))
                assert await cluster.host_of(name) != host
            await load.more(STREAMS)
        load.check()
        moved = identities(await cluster.workers()).items() - identities(before).items()
        assert {name for name, _ in moved} == {"decode-0", "prefill-0"}


@pytest.mark.chaos
async def test_a_host_that_comes_back_too_late_is_refused(
    tiny: Path, short: Path, rng: random.Random
) -> None:
    """Its worker runs elsewhere by then; the old process still believes to be that worker."""
    asked = await questions(tiny, rng, STREAMS, NEW)
    nodes = nodes_of("r", "p0", "p1", "d0", "d1", cpus=2)
    async with five_hosts(nodes, tiny, short) as (hosts, cluster):
        before = await cluster.workers()
        host = await cluster.host_of("decode-0")
        async with checked_load(cluster, asked, STREAMS) as load:
            await load.more(STREAMS)
            hosts.stop_raylet(host)  # it would end the old process as soon as it hears of Ray
            await hosts.net.cut(host)
            await cluster.until(lambda now: is_later(now, before, "decode-0"))
            newer = (await cluster.workers())["decode-0"]
            await hosts.net.mend(host)
            async with asyncio.timeout(DEADLINE_S):
                while "a newer start of worker decode-0 is registered" not in hosts.logs(host):
                    assert (await cluster.workers())["decode-0"] | newer == newer
                    await asyncio.sleep(0.2)
            await load.more(STREAMS)
        load.check()
        assert identities(await cluster.workers())["decode-0"] == identities({"": newer})[""]


@pytest.mark.chaos
async def test_a_router_leaves_a_host_that_is_cut_off(
    tiny: Path, short: Path, rng: random.Random
) -> None:
    """Streams of the other router go on; the old process ends when it hears of the new one."""
    asked = await questions(tiny, rng, STREAMS, NEW)
    nodes = nodes_of("r", "p", "d", "x", "y")
    options = ("--routers", "2", "--host", "0.0.0.0", "--lease", f"{LEASE_S:g}", *LABELS)
    with slow_network(*nodes, delay_ms=2, rate="100mbit") as net, ray_hosts(
        net, short, nodes
    ) as hosts:  # fmt: skip
        async with served_hosts(hosts, tiny, {"prefill-0", "decode-0"}, *options) as cluster:
            before = await cluster.workers()
            first = await router_host(hosts, before.keys(), {"x", "y"})
            (second,) = {"x", "y"} - {first}
            async with checked_load(cluster, asked, STREAMS) as load:
                await load.more(STREAMS)
                hosts.stop_raylet(first)  # it would end the old process
                await net.cut(first)
                assert await router_host(hosts, before.keys(), {second}) == second
                assert await told_host(hosts, "router-1") == net.host(second)
                await net.mend(first)
                async with asyncio.timeout(DEADLINE_S):
                    while "a newer start of router-1 is at" not in hosts.logs(first):
                        await asyncio.sleep(0.2)
                async with client_of(hosts, second, 1) as http:
                    moved = ServedHosts(http, hosts)
                    for question in asked.asked[:4]:
                        tokens = await moved.generate(question.ids, NEW)
                        assert asked.judge(question, tokens)[0], tokens
                await load.more(STREAMS)
            load.check()
            assert identities(await cluster.workers()) == identities(before)


async def router_host(hosts: RayHosts, workers: Collection[str], among: set[str]) -> str:
    """Wait until router-1 answers on one of these hosts, with these workers; return that host."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for host in among:
                async with client_of(hosts, host, 1, ASK_S) as http:
                    if (await ServedHosts(http, hosts).workers()).keys() == set(workers):
                        return host
            await asyncio.sleep(0.2)


async def told_host(hosts: RayHosts, member: str) -> str:
    """Return the address of a member's host that `baton status` says."""
    found = await asyncio.to_thread(
        subprocess.run, baton(hosts, "status", "--json"), env=hosts.environment(hosts.head),
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return str(json.loads(found.stdout)["cluster"]["members"][member]["host"])


@pytest.mark.chaos
async def test_a_detached_cluster_waits_for_a_node_and_outlives_one(
    tiny: Path, short: Path, rng: random.Random
) -> None:
    prompts = [prompt(rng, rng.randrange(20, 200)) for _ in range(4)]
    right = await expected(tiny, prompts, 24)
    with slow_network("r", "p", "d", "e", delay_ms=2, rate="100mbit") as net, ray_hosts(
        net, short, nodes_of("r", "p")
    ) as hosts:  # fmt: skip
        options = ("--detach", "--cluster", "two", "--wait-for-nodes", *LABELS)
        env = hosts.environment(hosts.head)
        with subprocess.Popen(serve_command(hosts, tiny, *options), env=env) as serve:
            try:
                await said(hosts, "decode-0", "no process yet: decode-0 asks for 1 CPU on a node")
                assert serve.poll() is None
                hosts.start("d", *nodes_of("d")["d"])
                assert await asyncio.to_thread(serve.wait, DEADLINE_S) == 0
            finally:
                serve.kill()
        async with client_of(hosts) as http:
            cluster = ServedHosts(http, hosts)
            assert [await cluster.generate(ids, 24) for ids in prompts] == right
            assert await cluster.host_of("decode-0") == "d"
            await asyncio.to_thread(hosts.kill, "d")
            lost = f"decode-0: its host {net.host('d')} is lost; Ray starts it again"
            await said(hosts, lost, "once a node has room: decode-0 asks for 1 CPU on a node with")
            hosts.start("e", *nodes_of("d")["d"])
            await cluster.until(lambda now: now.keys() == {"prefill-0", "decode-0"})
            assert await cluster.host_of("decode-0") == "e"
            assert [await cluster.generate(ids, 24) for ids in prompts] == right
        stop = baton(hosts, "stop", "--cluster", "two")
        assert await asyncio.to_thread(subprocess.call, stop, env=env, timeout=DEADLINE_S) == 0


@pytest.mark.chaos
async def test_answers_go_to_the_rank_with_the_faster_link(
    tiny: Path, short: Path, rng: random.Random
) -> None:
    """One request at a time, so that neither rank is ever much fuller than the other."""
    prompts = [prompt(rng, rng.randrange(300, 400)) for _ in range(60)]
    right = await expected(tiny, prompts, 4)
    nodes = nodes_of("r", "p", "d0", "d1")
    names = {"prefill-0", "decode-0", "decode-1"}
    options = (*LABELS, "--prefill", "1", "--decode", "2", "--prefill-here", "off")
    with slow_network(*nodes, delay_ms=1, rate="1gbit") as net, ray_hosts(
        net, short, nodes
    ) as hosts:  # fmt: skip
        async with served_hosts(hosts, tiny, names, *options) as cluster:
            await asyncio.to_thread(net.limit, await cluster.host_of("decode-1"), "4mbit")
            placed = {}
            for half in (slice(0, 30), slice(30, 60)):
                before = await placements(cluster)
                assert [await cluster.generate(ids, 4) for ids in prompts[half]] == right[half]
                after = await placements(cluster)
                placed[half.start] = after["decode-1"] - before["decode-1"]
                await cluster.until(lambda now: "decode-1" in now["prefill-0"]["slow_links"])
    assert placed[0] > 0 and placed[30] == 0


async def placements(cluster: ServedHosts) -> dict[str, float]:
    """Return the answers that each rank was given."""
    pages = [(await cluster.http.get("/metrics")).text]
    name = "baton_router_placements_total"
    return {rank: total(pages, name, worker=rank) for rank in ("decode-0", "decode-1")}


async def said(hosts: RayHosts, *words: str) -> None:
    """Wait until `baton status` has a line with all these words."""
    command = baton(hosts, "status", "--cluster", "two")
    env = hosts.environment(hosts.head)
    lines: list[str] = []
    async with asyncio.timeout(DEADLINE_S):
        while not any(all(word in line for word in words) for line in lines):
            found = await asyncio.to_thread(
                subprocess.run, command, env=env, stdout=subprocess.PIPE, text=True, check=False
            )
            lines = found.stdout.splitlines()


def nodes_of(*names: str, cpus: int = 1) -> dict[str, list[str]]:
    """Return Ray's options for each host, whose label is the first letter of its name."""
    words = ["--num-cpus", str(cpus)]
    return {name: [*words, "--labels", f"role={name[0]}"] for name in names}


@asynccontextmanager
async def five_hosts(
    nodes: dict[str, list[str]], tiny: Path, short: Path, *options: str
) -> AsyncIterator[tuple[RayHosts, ServedHosts]]:
    names = {"prefill-0", "prefill-1", "decode-0", "decode-1"}
    counts = ("--prefill", "2", "--decode", "2", "--lease", f"{LEASE_S:g}")
    with slow_network(*nodes, delay_ms=2, rate="100mbit") as net, ray_hosts(
        net, short, nodes
    ) as hosts:  # fmt: skip
        async with served_hosts(hosts, tiny, names, *LABELS, *counts, *options) as cluster:
            assert len({await cluster.host_of(name) for name in names}) == len(names)
            yield hosts, cluster


def identities(workers: dict[str, dict[str, Any]]) -> dict[str, tuple[str, int]]:
    return {name: (each["address"], each["incarnation"]) for name, each in workers.items()}


def is_gone(now: dict[str, dict[str, Any]], name: str) -> bool:
    return name not in now


def is_later(now: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]], name: str) -> bool:
    """Return True once all are ready, and `name` is so in a later life."""
    return now.keys() == before.keys() and now[name]["incarnation"] > before[name]["incarnation"]
