"""Restarts and drains of workers and routers under load: no stream is lost, no token is another."""

import asyncio
import os
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from deploy.several_routers import DEADLINE_S, Load, greedy, running
from deploy.test_scaling import Heard
from e2e.books import settled_findings
from e2e.clients import assert_same_where_it_went_on
from kit.polling import until
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.deploy.apply_settings import apply_handlers
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.control_handlers import control_handlers
from baton.deploy.commands import config as config_command
from baton.deploy.commands.apply import apply
from baton.deploy.errors import DeployError, ScaleError, StartError
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import (
    ClusterState,
    control_path,
    folder,
    process_named,
    published,
)
from baton.deploy.messages.control import listening
from baton.deploy.options.config_file import names_of, settings_for
from baton.deploy.options.in_force import default_of
from baton.engine.settings.config import EngineConfig
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.cluster

WORKERS = (ProcessRole.PREFILL, ProcessRole.DECODE)
ROUTERS = (ProcessRole.ROUTER,)
TOKENS = 150


@pytest.fixture(scope="module")
def engine(oracle: Oracle) -> EngineConfig:
    model = oracle.checkpoint("granite_dense_nope")
    return EngineConfig(
        model, page_size=16, chunked_prefill_size=64, max_running=32, memory_bytes=192 << 20
    )


@pytest.fixture(scope="module")
def cluster(engine: EngineConfig) -> Iterator[Cluster]:
    with running(engine, routers=2, prefill=1, decode_dp=2) as cluster:
        yield cluster


def prompts_of(count: int) -> list[list[int]]:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    return [[rng.randrange(3, 320) for _ in range(rng.randrange(20, 60))] for _ in range(count)]


def incarnations(cluster: Cluster) -> dict[str, int]:
    workers = cluster.router.server_info()["workers"]
    return {worker["worker_id"]: worker["incarnation"] for worker in workers}


class Watching(Heard):
    """A progress receiver that looks which workers each router reaches, before each restart."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.ready: list[tuple[str, dict[str, int]]] = []  # what comes next; incarnations there
        self._cluster = cluster

    def update(self, part: str, phase: str, fraction: float) -> None:
        super().update(part, phase, fraction)
        for router in self._cluster.routers.clients if phase.startswith("draining") else ():
            workers = router.server_info()["workers"]
            there = {w["worker_id"]: int(w["incarnation"]) for w in workers if w["ready"]}
            self.ready.append((part, there))


async def restart_under_load(
    cluster: Cluster, engine: EngineConfig, oracle: Oracle, streams: int, drain_s: float
) -> Load:
    """Restart everything under so many streams, and check every answer."""
    prompts = prompts_of(8)
    right = greedy(engine, prompts, TOKENS)
    before, pids = incarnations(cluster), dict(cluster.routers.pids)
    load = Load(cluster, prompts, TOKENS)
    load.start(streams)
    await until(lambda: len(load.answers) >= streams)
    heard = Watching(cluster)
    names = await asyncio.to_thread(cluster.rolling.restart, WORKERS, drain_s, heard)
    # Its streams have nowhere else to go.
    names += await asyncio.to_thread(cluster.rolling.restart, ROUTERS, DEADLINE_S, heard)
    await load.stop()
    after = incarnations(cluster)
    assert names == [*sorted(before, key=lambda name: not name.startswith("prefill")), *pids]
    assert after.keys() == before.keys() and all(after[name] > before[name] for name in before)
    for next_one, ready in heard.ready:  # each waited for the ones before it, on every router
        done = set(names[: names.index(next_one)]) & before.keys()
        assert done == {name for name in done if ready.get(name, 0) > before[name]}, next_one
    assert all(cluster.routers.pids[name] != pid for name, pid in pids.items())
    assert cluster._fleet.pids == {name: cluster.pid(name) for name in before}
    assert len(load.answers) >= streams
    by_prompt = {tuple(prompt): wanted for prompt, wanted in zip(prompts, right, strict=True)}
    asked = [prompt for prompt, _ in load.answers]
    found = [tokens for _, tokens in load.answers]
    wanted = [by_prompt[tuple(prompt)] for prompt in asked]
    assert_same_where_it_went_on(oracle, engine.model, asked, found, wanted)
    assert not await asyncio.wait_for(settled_findings(cluster), DEADLINE_S)
    return load


async def test_everything_is_restarted_under_load(
    cluster: Cluster, engine: EngineConfig, oracle: Oracle
) -> None:
    await restart_under_load(cluster, engine, oracle, streams=8, drain_s=0.3)


@pytest.mark.chaos
async def test_everything_is_restarted_under_64_streams(
    engine: EngineConfig, oracle: Oracle
) -> None:
    with running(engine, routers=3, prefill=2, decode_dp=2) as cluster:
        load = await restart_under_load(cluster, engine, oracle, streams=64, drain_s=30.0)
    print(f"{len(load.answers)} answers, {load.refused} refusals of stopping routers")


async def test_a_drained_worker_takes_nothing_until_that_is_undone(
    cluster: Cluster, engine: EngineConfig, oracle: Oracle
) -> None:
    prompts = prompts_of(4)
    right = greedy(engine, prompts, TOKENS)
    before = incarnations(cluster)
    load = Load(cluster, prompts, TOKENS)
    load.start(4)
    await until(lambda: len(load.answers) >= 4)
    heard = Heard()
    await asyncio.to_thread(cluster.rolling.drain, "decode-0", 0.2, heard)
    assert states(cluster, "decode-0") == {"draining"}
    placed = placements(cluster, "decode-0")
    await load.stop()
    wanted = {tuple(p): w for p, w in zip(prompts, right, strict=True)}
    asked, found = map(list, zip(*load.answers, strict=True))
    assert_same_where_it_went_on(
        oracle, engine.model, asked, found, [wanted[tuple(p)] for p in asked]
    )
    assert placements(cluster, "decode-0") == placed, "it was given a request"
    with pytest.raises(ScaleError, match="no other decode worker takes requests"):
        cluster.rolling.drain("decode-1", 0.0, heard)
    with pytest.raises(ScaleError, match="there is no worker 'decode-7'; there are decode-0"):
        cluster.rolling.drain("decode-7", 0.0, heard)
    await asyncio.to_thread(cluster.rolling.undrain, "decode-0", heard)
    assert states(cluster, "decode-0") == {"ready"}
    assert incarnations(cluster) == before, "no process was restarted"
    assert [member.worker_id for member in cluster.members(Role.DECODE)] == ["decode-0", "decode-1"]
    again = Load(cluster, prompts_of(64), TOKENS)  # decode-1 may have all states of the others
    again.start(4)
    async with asyncio.timeout(DEADLINE_S):
        while placements(cluster, "decode-0") == placed:
            await asyncio.sleep(0.05)
    await again.stop()


async def test_a_drain_that_is_undone_moves_nothing(
    cluster: Cluster, engine: EngineConfig, oracle: Oracle
) -> None:
    prompts = prompts_of(2)
    right = greedy(engine, prompts, TOKENS)
    before = incarnations(cluster)
    wanted = {tuple(p): w for p, w in zip(prompts, right, strict=True)}
    load = Load(cluster, prompts, TOKENS)
    load.start(4)
    moved = moves(cluster)
    heard = Heard()
    draining = asyncio.create_task(
        asyncio.to_thread(cluster.rolling.drain, "decode-0", DEADLINE_S, heard)
    )
    async with asyncio.timeout(DEADLINE_S):
        while not draining.done() and states(cluster, "decode-0") != {"draining"}:
            await asyncio.sleep(0.01)
    undone = [asyncio.to_thread(cluster.rolling.undrain, "decode-0", heard)]
    with pytest.raises(ScaleError, match="decode-0 takes requests again: its drain was undone"):
        await asyncio.gather(draining, *undone)
    assert states(cluster, "decode-0") == {"ready"}
    await load.stop()
    assert moves(cluster) == moved
    assert incarnations(cluster) == before
    asked, found = map(list, zip(*load.answers, strict=True))
    assert_same_where_it_went_on(
        oracle, engine.model, asked, found, [wanted[tuple(p)] for p in asked]
    )


@pytest.mark.chaos
async def test_a_cluster_follows_its_file_under_load(
    cluster: Cluster, engine: EngineConfig, oracle: Oracle, tmp_path: Path
) -> None:
    file = tmp_path / "baton.yaml"
    plain = f"model: {engine.model}\npage-size: 16\nserve:\n  decode-dp: 2\n  routers: 2\n"
    file.write_text(plain)
    prompts = prompts_of(2)
    wanted = dict(zip(map(tuple, prompts), greedy(engine, prompts, TOKENS), strict=True))
    with commanded(cluster, file) as run:
        assert await run(apply) == "nothing to change\n"
        load = Load(cluster, prompts, TOKENS)
        load.start(4)
        before = incarnations(cluster)
        file.write_text(f"{plain}  policy: least_load\n  prefill: 2\n")
        differences = [
            f"prefill: 1 -> 2  # {file}:7; at once",
            f"policy: prefix_aware -> least_load  # {file}:6; restarts router processes, one after "
            "another",
        ]
        assert (await run(apply, "--dry-run")).splitlines() == differences
        assert (incarnations(cluster), policies(cluster)) == (before, {"prefix_aware"})
        told = (await run(apply, "--drain", f"{DEADLINE_S:g}")).splitlines()  # of routers
        assert told[:2] == differences and len(told) > 5
        there = incarnations(cluster)
        assert there.keys() == before.keys() | {"prefill-1"} and there | before == there
        assert policies(cluster) == {"least_load"}
        assert await run(apply) == "nothing to change\n"
        assert incarnations(cluster) == there
        shown = await run(config_command.cluster, "--changed")
        assert re.search(rf"^policy: least_load +# {file}:6$", shown, re.MULTILINE)
        file.write_text(f"chunked-prefill-size: 32\n{plain}  policy: least_load\n")
        await run(apply, "--drain", "0.3")
        workers = cluster.router.server_info()["workers"]
        chunks = {each["worker_id"]: each["settings"]["chunked_prefill_size"] for each in workers}
        assert chunks == dict.fromkeys(before, 32)
        there = incarnations(cluster)
        file.write_text(f"lease: 2\n{plain.replace('size: 16', 'size: 32')}")
        with pytest.raises(DeployError, match="only a new start can change page-size"):
            await run(apply)
        assert (incarnations(cluster), policies(cluster)) == (there, {"least_load"})
        await load.stop()
    asked, found = map(list, zip(*load.answers, strict=True))
    assert_same_where_it_went_on(
        oracle, engine.model, asked, found, [wanted[tuple(p)] for p in asked]
    )


@pytest.mark.chaos
async def test_options_with_which_a_worker_does_not_start_are_taken_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    config, before = cluster.config, incarnations(cluster)
    wrong = replace(config, engine=replace(config.engine, model=tmp_path / "nowhere"))
    decode = (ProcessRole.DECODE,)
    with pytest.raises(StartError, match=r"decode-0: cannot start: .*again those of before"):
        await asyncio.to_thread(cluster.reconfigure, wrong, decode, 0.3)
    assert cluster.config == config
    after = incarnations(cluster)
    assert {name for name, each in after.items() if each > before[name]} == {"decode-0"}
    assert states(cluster, "decode-0") == states(cluster, "decode-1") == {"ready"}
    load = Load(cluster, prompts_of(8), TOKENS)
    load.start(4)
    async with asyncio.timeout(DEADLINE_S):
        while len(load.answers) < 4:
            await asyncio.sleep(0.05)
    await load.stop()


@contextmanager
def commanded(cluster: Cluster, file: Path) -> Iterator[Callable[..., Awaitable[str]]]:
    """Let commands find a cluster as if `baton serve` had made it from a file. Yield a function
    that runs a command for it, and returns what that prints.
    """
    found = settings_for(file, "serve").values()
    names = {each.names[0].removeprefix("--"): each for each in names_of("serve").values()}
    settings = {name: default_of(each) for name, each in names.items()}
    settings |= {each.name: each for each in found}
    cluster.config = replace(cluster.config, settings=tuple(settings.values()))
    cluster.wiring = replace(cluster.wiring, config=cluster.config)
    process, name = process_named(os.getpid()), f"applied-{os.getpid()}"

    async def run(command: click.Command, *words: str) -> str:
        given = [*(("-f", str(file)) if command is apply else ()), "--cluster", name, *words]
        result = await asyncio.to_thread(
            CliRunner().invoke, command, given, catch_exceptions=False, standalone_mode=False
        )
        return result.output

    with owned_folder(folder()) as own:
        control, urls = control_path(own), cluster.routers.http_urls
        state = ClusterState(name, *process, time.time(), "", urls, "", str(control))
        handlers = {**control_handlers(cluster), **apply_handlers(cluster)}
        with listening(control, handlers, ProcessSupervisor()), published(own, state) as public:
            public.serves()
            yield run


def policies(cluster: Cluster) -> set[str]:
    return {each.server_info()["router"]["policy"] for each in cluster.routers.clients}


def moves(cluster: Cluster, routers: int | None = None) -> float:
    """Return how often requests were placed again, by the first few routers; None: by all."""
    pages = [router.metrics() for router in cluster.routers.clients[:routers]]
    return total(pages, "baton_router_retries_total")


def states(cluster: Cluster, worker_id: str) -> set[str]:
    """Return what the routers say of a worker."""
    infos = [router.server_info() for router in cluster.routers.clients]
    return {w["state"] for info in infos for w in info["workers"] if w["worker_id"] == worker_id}


def placements(cluster: Cluster, worker_id: str) -> float:
    pages = [router.metrics() for router in cluster.routers.clients]
    return total(pages, "baton_router_placements_total", worker=worker_id)
