"""Clusters whose workers have several tensor-parallel ranks: whatever rank is killed or stopped
under load, every answer is whole and right."""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from deploy.several_routers import DEADLINE_S, Load, greedy
from deploy.wired import wired
from e2e.books import settled_findings
from e2e.clients import assert_same_where_it_went_on
from mtp_models import MtpCheckpoints
from oracle.reference import Oracle

from baton.bench.cluster.scrape import total
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.demand.demand import NodePlacement
from baton.deploy.errors import StartError
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig
from baton.transfer.channels.nixl import staging
from baton.worker.config import StateReturn

LEADER, FOLLOWER = 0, 1
STREAMS = 16
TOKENS = 60
LEASE_MS = 2_000
RANK_TIMEOUT_S = 10.0
PROMPTS = 24
ROUNDS = 8


@pytest.fixture(scope="module")
def engine(oracle: Oracle) -> EngineConfig:
    return EngineConfig(
        oracle.checkpoint("granite_dense_nope"),
        page_size=16,
        chunked_prefill_size=64,
        max_running=16,
        memory_bytes=128 << 20,
        rank_timeout_s=RANK_TIMEOUT_S,
    )


@contextmanager
def running(engine: EngineConfig, **more: Any) -> Iterator[Cluster]:
    router = RouterConfig(engine.model, lease_ms=LEASE_MS)
    with Cluster(ClusterConfig(engine, router, **more)) as cluster:
        yield cluster


class Served:
    """A cluster under load, whose ranks a test takes away."""

    def __init__(self, cluster: Cluster, engine: EngineConfig, oracle: Oracle) -> None:
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        self.rng = random.Random(seed)
        self.cluster = cluster
        self._engine, self._oracle = engine, oracle
        self._prompts = [
            [self.rng.randrange(3, 320) for _ in range(self.rng.randrange(20, 90))]
            for _ in range(PROMPTS)
        ]
        expected = greedy(engine, self._prompts, TOKENS)
        self._expected = dict(zip(map(tuple, self._prompts), expected, strict=True))
        self._load = Load(cluster, self._prompts, TOKENS)
        self._compared = 0

    def start(self) -> None:
        self._load.start(STREAMS)

    def compare(self) -> None:
        """Every answer since the last call must be right."""
        new = self._load.answers[self._compared :]
        self._compared += len(new)
        wanted = [self._expected[tuple(prompt)] for prompt, _ in new]
        differ = [each for each, right in zip(new, wanted, strict=True) if each[1] != right]
        print(f"{len(new)} answers compared, {len(differ)} differ at a near tie", flush=True)
        prompts, answers = [prompt for prompt, _ in new], [answer for _, answer in new]
        assert_same_where_it_went_on(self._oracle, self._engine.model, prompts, answers, wanted)

    @property
    def refused(self) -> int:
        """Return the requests that the router did not begin, and that were sent again."""
        return self._load.refused

    async def stop(self) -> None:
        """Every answer must be whole and right, and every worker's books must balance."""
        await self._load.stop()
        self.compare()
        assert self._compared
        assert not await asyncio.wait_for(settled_findings(self.cluster), DEADLINE_S)

    def workers(self) -> dict[str, dict[str, Any]]:
        found = self.cluster.router.server_info()["workers"]
        return {each["worker_id"]: each for each in found}

    async def take(self, worker: str, rank: int, number: signal.Signals) -> None:
        """Send a signal to a rank that serves requests, and wait until all workers are back. A
        leader that was stopped goes on once the router has lost it.
        """
        await until(lambda: self.workers().get(worker, {}).get("running", 0) > 0)
        before = self.workers()[worker]
        pid = before["rank_pids"][rank]
        os.kill(pid, number)
        if (rank, number) == (LEADER, signal.SIGSTOP):
            try:
                await until(lambda: not self.workers().get(worker, {}).get("ready"))
            finally:
                os.kill(pid, signal.SIGCONT)
        else:
            await until(lambda: self._again(worker, before["incarnation"]))
        await until(self._all_ready)

    def _again(self, worker: str, incarnation: int) -> bool:
        now = self.workers().get(worker)
        return now is not None and now["ready"] and now["incarnation"] > incarnation

    def _all_ready(self) -> bool:
        ready = {name for name, each in self.workers().items() if each["ready"]}
        return ready == set(self.cluster.workers)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():
            await asyncio.sleep(0.05)


@pytest.mark.cluster
async def test_a_rank_that_dies_costs_no_answer(engine: EngineConfig, oracle: Oracle) -> None:
    """Prefill workers have one rank, and decode workers two, which verify drafts."""
    with running(drafting(engine), decode_dp=2, decode_tp=2) as cluster:
        served = Served(cluster, engine, oracle)
        ranks = {name: len(each["rank_pids"]) for name, each in served.workers().items()}
        assert ranks == {"prefill-0": 1, "decode-0": 2, "decode-1": 2}
        devices = {name: each["rank_devices"] for name, each in served.workers().items()}
        assert devices == {name: ["cpu"] * count for name, count in ranks.items()}
        served.start()
        await served.take("decode-0", FOLLOWER, signal.SIGKILL)
        await served.stop()
        assert accepted_drafts(cluster)


@pytest.mark.cluster
async def test_a_lost_rank_of_the_only_prefill_worker_costs_no_answer(
    engine: EngineConfig, oracle: Oracle
) -> None:
    """Its requests wait for the worker's next life, and spend no further attempt on this one."""
    with running(engine, prefill_tp=2, decode_dp=2) as cluster:
        served = Served(cluster, engine, oracle)
        served.start()
        await served.take("prefill-0", FOLLOWER, signal.SIGKILL)
        await served.stop()


def drafting(engine: EngineConfig) -> EngineConfig:
    """The prompts come again and again, so that the texts of answers have right drafts."""
    return replace(
        engine,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_ngram_capacity=1 << 14,
    )


def accepted_drafts(cluster: Cluster) -> float:
    ranks = [name for name in cluster.workers if name.startswith("decode")]
    return total(map(cluster.router.metrics, ranks), "baton_engine_drafts_accepted_total")


@pytest.mark.chaos
@pytest.mark.parametrize("channel", ["grpc", "nixl"])
@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 2), (2, 1), (2, 4)], ids=str)
async def test_ranks_of_unequal_replicas_die_and_hang(
    engine: EngineConfig, oracle: Oracle, prefill_tp: int, decode_tp: int, channel: str
) -> None:
    options = {"prefill": 2, "prefill_tp": prefill_tp, "decode_dp": 2, "decode_tp": decode_tp}
    with running(engine, channel=channel, **options) as cluster:
        await take_many(Served(cluster, engine, oracle))


@pytest.mark.chaos
@pytest.mark.parametrize("channel", ["grpc", "nixl"])
async def test_so_do_those_of_replicas_that_verify_drafts(
    engine: EngineConfig, oracle: Oracle, channel: str
) -> None:
    options = {"prefill": 2, "prefill_tp": 2, "decode_dp": 2, "decode_tp": 2}
    with running(drafting(engine), channel=channel, **options) as cluster:
        await take_many(Served(cluster, engine, oracle))
        assert accepted_drafts(cluster)


@pytest.mark.chaos
async def test_so_do_those_of_replicas_that_draft_by_the_models_own_layer(
    engine: EngineConfig, oracle: Oracle, mtp_checkpoints: MtpCheckpoints
) -> None:
    """The right answers are those of an engine that does not run the layer."""
    plain = replace(engine, model=mtp_checkpoints.folder("qwen3_next_moe"))
    config = replace(plain, mtp=True, speculative_algorithm=SpeculativeAlgorithm.MTP)
    options = {"prefill": 2, "prefill_tp": 1, "decode_dp": 2, "decode_tp": 2}
    with running(config, **options) as cluster:
        await take_many(Served(cluster, plain, oracle))
        assert accepted_drafts(cluster)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
async def test_each_rank_of_each_worker_dies_and_hangs(
    engine: EngineConfig, oracle: Oracle
) -> None:
    options = {"prefill": 2, "prefill_tp": 2, "decode_dp": 2, "decode_tp": 2}
    with running(engine, **options) as cluster:
        served = Served(cluster, engine, oracle)
        await take_many(served, [*every_fault(served), *served.rng.sample(every_fault(served), 4)])


Fault = tuple[str, int, signal.Signals]


def every_fault(served: Served) -> list[Fault]:
    """Return each rank of each worker, killed and stopped, in a random order."""
    faults = [
        (worker, rank, number)
        for worker, each in sorted(served.workers().items())
        for rank in range(len(each["rank_pids"]))
        for number in (signal.SIGKILL, signal.SIGSTOP)
    ]
    served.rng.shuffle(faults)
    return faults


async def take_many(served: Served, faults: Sequence[Fault] = ()) -> None:
    """Take ranks away under load. faults: none for `ROUNDS` random ones."""
    served.start()
    chosen = faults or [served.rng.choice(every_fault(served)) for _ in range(ROUNDS)]
    for number, (worker, rank, sent) in enumerate(chosen, 1):
        print(f"{number}: {sent.name} to rank {rank} of {worker}", flush=True)
        await served.take(worker, rank, sent)
        served.compare()
    await served.stop()
    assert not served.refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefill_tp": 0}, "--prefill-tp is 0; a worker has at least one rank"),
        (
            {"decode_tp": 2, "device": "cuda:1"},
            "--decode-tp: device is cuda:1, one device",
        ),
        (
            {"decode_tp": 2, "device": "cuda", "placement": NodePlacement(gpus=1)},
            "--gpus-per-worker 1: each of the 2 ranks of a decode worker has a GPU of its own",
        ),
    ],
)
def test_numbers_of_ranks_that_cannot_be_are_refused(
    engine: EngineConfig, options: dict[str, Any], message: str
) -> None:
    engine = replace(engine, device=options.pop("device", "cpu"))
    with pytest.raises(StartError, match=message):
        ClusterConfig(engine, **options)


def test_the_plan_has_the_buffers_for_peers_of_other_numbers_of_ranks(
    engine: EngineConfig,
) -> None:
    router = RouterConfig(engine.model)
    options: dict[str, Any] = {"prefill": 2, "decode_dp": 3, "state_return": StateReturn.OFF}

    def buffers(**more: Any) -> list[int]:
        """Bytes of each worker, the two of prefill first."""
        config = ClusterConfig(engine, router, **(options | more))
        wiring = wired(config)
        return [wiring.worker(member).engine.staging_bytes for member in config.members]

    each = staging.STAGING_BYTES
    assert buffers(decode_tp=2) == [3 * each] * 2 + [2 * each] * 3
    back = {"decode_tp": 2, "state_return": StateReturn.DEMAND}
    assert buffers(**back) == [6 * each] * 2 + [2 * each] * 3
    assert not any(buffers(decode_tp=2, prefill_tp=2) + buffers(decode_tp=2, channel="grpc"))


def test_a_model_that_cannot_be_divided_is_refused_before_the_start(oracle: Oracle) -> None:
    engine = EngineConfig(oracle.checkpoint("bamba_odd"), memory_bytes=128 << 20)
    config = ClusterConfig(engine, RouterConfig(engine.model), decode_tp=2)
    with pytest.raises(StartError, match=r"decode-0: .* bamba_odd runs on 1 rank"), Cluster(config):
        pytest.fail("it has started")
