"""One real cluster for all of these tests: a prefill worker, a decode group of two ranks and a
router, on Ray."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from e2e.books import settled_findings
from mtp_models import MtpCheckpoints
from oracle.reference import Oracle

from baton.api.access.keys import write_keys
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.engine import Engine
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.router.dump.dump_options import DumpOptions
from baton.worker.config import StateReturn

CHECKPOINT = "granite_dense_nope"


@pytest.fixture(scope="session")
def model(oracle: Oracle) -> Path:
    return oracle.checkpoint(CHECKPOINT)


@pytest.fixture(scope="session")
def engine_config(model: Path) -> EngineConfig:
    """Small pages and chunks, so that every prompt of some length crosses several."""
    return EngineConfig(
        model, page_size=16, chunked_prefill_size=64, max_running=8, memory_bytes=256 << 20
    )


@pytest.fixture(scope="session")
def mtp_config(engine_config: EngineConfig, mtp_checkpoints: MtpCheckpoints) -> EngineConfig:
    """Return the options of an engine whose model has a layer of multi-token prediction."""
    return replace(engine_config, model=mtp_checkpoints.folder("qwen3_next_moe"))


@pytest.fixture(scope="session")
def engine(engine_config: EngineConfig) -> Engine:
    """Return an engine of the cluster's model in this process; the cluster's answers must equal its
    own."""
    return Engine.load(engine_config)


@pytest.fixture(scope="session")
def dump_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the cluster's router records requests."""
    return tmp_path_factory.mktemp("dump")


@pytest.fixture(scope="session", params=["auto"])
def running_cluster(
    request: pytest.FixtureRequest,
    engine_config: EngineConfig,
    dump_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Its parameter is the channel: `auto` (it finds NIXL) has one prefill worker and serves
    everybody; `grpc` has two, places by cached prefixes, lets ranks compute prompts, and asks for
    API keys. The ranks of `grpc` and `nixl` verify drafts. `mtp` is `auto` with a model that drafts
    by its own layer.
    """
    usual = request.param != "grpc"
    match request.param:
        case "auto":
            served = engine_config
        case "mtp":
            plain: EngineConfig = request.getfixturevalue("mtp_config")
            served = replace(plain, mtp=True, speculative_algorithm=SpeculativeAlgorithm.MTP)
        case _:
            served = replace(engine_config, speculative_algorithm=SpeculativeAlgorithm.NGRAM)
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    write_keys(keys, [])  # the operator's is in no file
    config = ClusterConfig(
        served,
        RouterConfig(
            served.model,
            api_keys=None if usual else keys,
            policy="round_robin" if usual else "prefix_aware",
            dump=DumpOptions(dump_folder),
            prefill_here=0 if usual else None,
        ),
        prefill=1 if usual else 2,
        decode_dp=2,
        state_return=StateReturn.DEMAND,
        channel="auto" if request.param == "mtp" else request.param,
        profile_folder=tmp_path_factory.mktemp("profiles"),
    )
    with Cluster(config) as cluster:
        yield cluster


@pytest.fixture
async def cluster(running_cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster, whose books must balance once the test is over."""
    yield running_cluster
    findings = await asyncio.wait_for(settled_findings(running_cluster), timeout=240)
    assert not findings


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    return random.Random(seed)
