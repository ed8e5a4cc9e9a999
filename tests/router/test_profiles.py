"""`/start_profile` and `/stop_profile` at a real router, with workers that the test plays."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from fake_workers import DEADLINE_S, FakeRank, FakeWorker
from router_neighbours import Cluster

from baton.core.error_codes import ErrorCode
from baton.rpc.errors import make_error


@asynccontextmanager
async def router(folder: Path) -> AsyncIterator[tuple[httpx.AsyncClient, FakeWorker, FakeRank]]:
    async with Cluster(folder) as cluster:
        workers = FakeWorker("p0"), FakeRank("d0")
        await cluster.add(*workers)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            yield http, *workers


async def test_every_worker_is_profiled_within_the_bounds_that_are_asked(tmp_path: Path) -> None:
    async with router(tmp_path) as (http, prefill, rank):
        reply = await http.post("/start_profile")
        assert (reply.status_code, reply.json()) == (200, {"workers": ["d0", "p0"]})
        assert prefill.profiling is not None and rank.profiling is not None
        assert (rank.profiling.steps, rank.profiling.timeout_ms) == (50, 10_000)
        assert (await http.get("/health")).status_code == 200
        again = await http.post("/start_profile")
        assert again.status_code == 409
        assert again.json()["error"]["code"] == "conflict"
        assert rank.profiling is not None, "what ran before goes on"
        reply = await http.post("/stop_profile")
        assert [worker["file"] for worker in reply.json()["workers"]] == [
            "/traces/d0",
            "/traces/p0",
        ]
        assert (await http.post("/stop_profile")).status_code == 409
        asked = {"num_steps": 7, "timeout_s": 2.5, "with_stack": True, "workers": ["d0"],
                 "activities": ["CPU", "GPU"]}  # fmt: skip
        reply = await http.post("/start_profile", json=asked)
        assert reply.json() == {"workers": ["d0"]} and prefill.profiling is None
        started = rank.profiling
        assert (started.steps, started.timeout_ms, started.with_stack) == (7, 2500, True)


async def test_no_worker_is_left_profiling_where_one_cannot(tmp_path: Path) -> None:
    async with router(tmp_path) as (http, prefill, rank):
        rank.profile_error = make_error(ErrorCode.INVALID_REQUEST, "d0", "num_steps is 7")
        reply = await http.post("/start_profile", json={"num_steps": 7})
        assert reply.status_code == 400
        assert reply.json()["error"]["message"] == "num_steps is 7"
        assert prefill.profiling is None


async def test_a_file_that_one_worker_could_not_write_does_not_hide_the_others(
    tmp_path: Path,
) -> None:
    async with router(tmp_path) as (http, _, rank):
        await http.post("/start_profile")
        rank.profile_error = make_error(ErrorCode.INTERNAL, "d0", "no space left")
        workers = (await http.post("/stop_profile")).json()["workers"]
        assert workers[0] == {"worker_id": "d0", "error": "no space left"}
        assert workers[1]["file"] == "/traces/p0"


async def test_bad_questions_are_refused_with_what_would_be_right(tmp_path: Path) -> None:
    async with router(tmp_path) as (http, prefill, _):
        for body, words in (
            ({"workers": ["d9"]}, "expected some of d0, p0"),
            ({"workers": []}, "no worker"),
            ({"output_dir": "/tmp"}, "--profile-folder"),
            ({"num_steps": -1}, "num_steps"),
            ({"num_steps": "many"}, "num_steps"),
            ({"timeout_s": 1e12}, "timeout_s"),
        ):
            reply = await http.post("/start_profile", json=body)
            assert reply.status_code in (400, 503), body
            assert words in reply.json()["error"]["message"]
        assert prefill.profiling is None
