"""Three routers, state by NIXL: a new authority under load, and then one router is revoked."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploy.several_routers import DEADLINE_S, Load, greedy
from deploy.test_rolling import incarnations, moves, prompts_of
from deploy.test_routers import asked, placed
from e2e.books import settled_findings
from e2e.clients import assert_same_where_it_went_on
from oracle.reference import Oracle

from baton.bench.cluster.stream_client import RequestFailed
from baton.deploy.certs.authority_folder import AuthorityFolder
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.rpc import credentials, file_watcher
from baton.rpc.identity import ProcessRole

pytestmark = pytest.mark.chaos  # by its length

STEP_S = 2 * file_watcher.RECHECK_S + credentials.CHECK_S  # until every process has read its files
TOKENS = 150
ANSWER = 400  # tokens, see `asked`


@pytest.fixture
def engine(oracle: Oracle) -> EngineConfig:
    model = oracle.checkpoint("granite_dense_nope")
    return EngineConfig(
        model, page_size=16, chunked_prefill_size=64, max_running=32, memory_bytes=192 << 20
    )


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    return AuthorityFolder.create(tmp_path / "authority", "several")


@pytest.fixture
def cluster(engine: EngineConfig, authority: AuthorityFolder) -> Iterator[Cluster]:
    router = RouterConfig(engine.model)
    config = ClusterConfig(
        engine, router, routers=3, decode_dp=2, channel="nixl", authority=authority.folder
    )
    with Cluster(config) as cluster:
        yield cluster


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await asyncio.to_thread(true):
            await asyncio.sleep(0.1)


async def test_a_new_authority_under_load_and_a_revoked_router(
    cluster: Cluster, authority: AuthorityFolder, engine: EngineConfig, oracle: Oracle
) -> None:
    prompts = prompts_of(8)
    right = greedy(engine, prompts, TOKENS)
    before = incarnations(cluster)
    load = Load(cluster, prompts, TOKENS)
    load.start(12)
    for _ in range(3):
        await asyncio.sleep(STEP_S)  # streams go on meanwhile
        authority.rotate()
    assert authority.rotation is None
    await asyncio.sleep(STEP_S)  # streams go on meanwhile
    assert moves(cluster) == 0, "no stream noticed the rotation"
    cluster.kill("decode-1")  # its next life knows the new authority alone
    await until(lambda: all(is_back(router.server_info(), before) for router in clients(cluster)))
    await load.stop()
    wanted = {tuple(p): w for p, w in zip(prompts, right, strict=True)}
    ids, found = map(list, zip(*load.answers, strict=True))
    assert_same_where_it_went_on(
        oracle, engine.model, ids, found, [wanted[tuple(each)] for each in ids]
    )
    workers = cluster.router.server_info()["workers"]
    channels = {c for w in workers if w["role"] == "decode" for c in w["channels"].values()}
    assert {each.partition(":")[0] for each in channels} == {"nixl"}

    moved = moves(cluster, 2)
    long = greedy(engine, prompts[:4], ANSWER)
    streams = [asked(url, prompts[:4]) for url in cluster.routers.http_urls]
    await until(lambda: all(placed(router) >= 4 for router in clients(cluster)))
    authority.revoke(ProcessRole.ROUTER, "router-2")
    for number in (0, 1):
        assert await asyncio.gather(*streams[number]) == long
    for ended in await asyncio.gather(*streams[2], return_exceptions=True):
        assert isinstance(ended, RequestFailed) or ended in long, ended
    await until(lambda: not clients(cluster)[2].server_info()["workers"])
    assert moves(cluster, 2) == moved, "the streams of the other routers stand"
    for url in cluster.routers.http_urls[:2]:
        assert await asyncio.gather(*asked(url, prompts[:2])) == long[:2]
    assert not await asyncio.wait_for(settled_findings(cluster), DEADLINE_S)


def clients(cluster: Cluster):  # type: ignore[no-untyped-def]
    return cluster.routers.clients


def is_back(info: dict, before: dict[str, int]) -> bool:  # type: ignore[type-arg]
    now = {w["worker_id"]: w["incarnation"] for w in info["workers"] if w["ready"]}
    return now.keys() == before.keys() and now["decode-1"] > before["decode-1"]
