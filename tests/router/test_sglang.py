"""SGLang's endpoints on a router, over real gRPC to workers that the test plays."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster

from baton.core.cache_salt import make_salt
from baton.proto.common_pb2 import DEADLINE_EXCEEDED, Error
from baton.proto.worker_pb2 import EngineTotals


def client(cluster: Cluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S)


async def test_generate_carries_what_the_rank_said(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:

        def answer(start: Any) -> list[Any]:
            tokens = tokens_of(start, [40, 41], last=True)
            tokens.finished.usage.cached_tokens = 2
            return [tokens]

        ranks = [FakeRank(f"d{i}", answer=answer) for i in range(2)]
        await cluster.add(FakeWorker("p0"), *ranks)
        for number, rank in enumerate(ranks):
            body = {"input_ids": [10, 11, 12], "routed_dp_rank": number, "rid": f"r{number}"}
            reply = (await http.post("/generate", json=body)).json()
            start = await within(rank.starts.get())
            assert start.client_id == f"r{number}"
            assert reply["output_ids"] == [40, 41]
            assert reply["meta_info"]["cached_tokens"] == 2
            assert reply["meta_info"]["id"] == f"r{number}"
            assert reply["meta_info"]["e2e_latency"] > 0
        far = await http.post("/generate", json={"input_ids": [10], "routed_dp_rank": 2})
        assert far.status_code == 400
        assert far.json()["error"]["param"] == "routed_dp_rank"


async def test_a_flush_reaches_every_worker_with_its_time(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        workers = [FakeWorker("p0"), FakeWorker("p1"), FakeRank("d0")]
        await cluster.add(*workers)
        for method in ("GET", "POST"):
            reply = await http.request(method, "/flush_cache", params={"timeout": 1.5})
            assert reply.status_code == 200
        assert [worker.flushes for worker in workers] == [[1500, 1500]] * 3


async def test_what_is_of_a_salt_is_flushed_twice_on_every_worker(tmp_path: Path) -> None:
    """A prefix that one has lent another between the first times is gone after the second."""
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        workers = [FakeWorker("p0"), FakeRank("d0")]
        await cluster.add(*workers)
        reply = await http.post("/flush_cache", json={"cache_salt": "s"})
        assert reply.status_code == 200
        assert [worker.flushed_salts for worker in workers] == [[make_salt("s")] * 2] * 2


async def test_a_busy_worker_fails_the_flush_by_name(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        idle, busy = FakeWorker("p0"), FakeRank("d0")
        busy.flush_error = Error(code=DEADLINE_EXCEEDED, origin="d0", message="d0 is at work")
        await cluster.add(idle, busy)
        reply = await http.post("/flush_cache", params={"timeout": 0})
    assert reply.status_code == 504
    assert reply.json()["error"]["message"] == "d0 is at work"
    assert idle.flushes == [0]


async def test_an_abort_by_rid_reaches_the_rank_and_spares_the_others(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [40])])
        await cluster.add(FakeWorker("p0"), rank)
        asking = {
            name: asyncio.create_task(http.post("/generate", json={"input_ids": [10], "rid": name}))
            for name in ("a", "b")
        }
        starts = {s.client_id: s for s in [await within(rank.starts.get()) for _ in asking]}
        reply = await http.post("/abort_request", json={"rid": "a"})
        assert reply.json() == {"aborted": 1}
        cancelled = await within(rank.cancels.get())
        assert cancelled.request_id == starts["a"].request_id
        stopped = (await within(asking["a"])).json()
        assert stopped["meta_info"]["finish_reason"]["type"] == "abort"
        rank.send(tokens_of(starts["b"], [41], first_index=1, last=True))
        assert (await within(asking["b"])).json()["output_ids"] == [40, 41]


async def test_what_waits_for_a_worker_can_be_aborted(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        asking = asyncio.create_task(http.post("/generate", json={"input_ids": [10]}))
        stopped = 0
        async with asyncio.timeout(DEADLINE_S):
            while not stopped:
                reply = await http.post("/abort_request", json={"abort_all": True})
                stopped = reply.json()["aborted"]
        reply = await within(asking)
    assert reply.json()["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply.json()["output_ids"] == []


async def test_server_info_has_each_ranks_options_and_the_first_ones_beside_them(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, served_model_name="toy") as cluster, client(cluster) as http:
        ranks = [FakeRank(f"d{i}") for i in range(2)]
        for number, rank in enumerate(ranks):
            rank.settings = {"page_size": str(16 << number), "disable_radix_cache": "false"}
        ranks[1].totals = EngineTotals(accepted_lengths=[1, 0, 3])
        await cluster.add(FakeWorker("p0"), *ranks)
        for path in ("/server_info", "/get_server_info"):
            info = (await http.get(path)).json()
            assert (info["page_size"], info["disable_radix_cache"]) == (16, False)
            assert [s["page_size"] for s in info["internal_states"]] == [16, 32]
            assert [s["worker_id"] for s in info["internal_states"]] == ["d0", "d1"]
            found = [s.get("avg_spec_accept_length") for s in info["internal_states"]]
            assert found == [None, 10 / 4]
            assert (info["dp_size"], info["served_model_name"]) == (2, "toy")
            assert [w["worker_id"] for w in info["workers"]] == ["d0", "d1", "p0"]


async def test_health_generate_goes_to_a_rank_and_back(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [40], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        assert (await http.get("/health_generate")).status_code == 200
        start = await within(rank.starts.get())
    assert (list(start.prompt_ids), start.sampling.max_tokens) == ([0], 1)


async def test_a_router_says_whose_workers_accept_drafts_at_random(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster, client(cluster) as http:
        assert "x-baton-synthetic-acceptance" not in (await http.get("/version")).headers
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [40], last=True)],
                        synthetic_acceptance="2.5")  # fmt: skip
        await cluster.add(FakeWorker("p0", synthetic_acceptance="2.5"), rank)
        reply = await http.post("/generate", json={"input_ids": [10, 11]})
        assert reply.headers["x-baton-synthetic-acceptance"] == "2.5"
        assert reply.json()["meta_info"]["synthetic_acceptance"] == 2.5
        # One that verifies is kept out, so that no answer is of both.
        async with FakeRank("d1") as plain:
            refused = await plain.register(cluster.started.internal_address)
        assert "synthetic_acceptance: ours 2.5, theirs (absent)" in refused.error.message
