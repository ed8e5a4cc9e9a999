"""Requests that wait at a real router, with a rank that the test plays."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.proto.worker_pb2 import StartRequest

TEXTS = {name: new_key() for name in ("ada", "ben", "watcher")}
AHEAD = 2
"""Requests that a rank is given beyond what it runs at once, with one prefill worker."""


@asynccontextmanager
async def served(
    folder: Path, worker: FakeWorker | None = None, **options: object
) -> AsyncIterator[tuple[Cluster, FakeRank, httpx.AsyncClient]]:
    """A router with API keys before a rank that runs one request, and ends it when told."""
    file = folder / "keys.json"
    scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
    write_keys(file, [Key(name, digest_of(text), scopes) for name, text in TEXTS.items()])
    async with Cluster(folder, api_keys=file, **options) as cluster:
        cluster.headers = {"x-api-key": TEXTS["watcher"]}
        rank = FakeRank("d0")
        rank.max_running = 1
        await cluster.add(worker or FakeWorker("p0"), rank)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            yield cluster, rank, client


def ask(client: httpx.AsyncClient, key: str, **more: object) -> "asyncio.Task[httpx.Response]":
    body = {"prompt": [11] * 5, "max_tokens": 3, "user": key} | more
    headers = {"x-api-key": TEXTS[key]}
    return asyncio.create_task(client.post("/v1/completions", json=body, headers=headers))


async def waiting(cluster: Cluster, client: httpx.AsyncClient, count: int) -> str:
    """Return the metrics once so many requests wait."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            page = (await client.get("/metrics", headers=cluster.headers)).text
            if f"baton_router_requests_waiting {count}.0" in page:
                return page


async def end(rank: FakeRank, start: StartRequest) -> None:
    rank.send(tokens_of(start, [20], last=True))


async def test_a_flood_of_one_key_does_not_hold_up_another(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, rank, client):
        flood = [ask(client, "ada", priority=1000) for _ in range(12)]
        given = [await within(rank.starts.get()) for _ in range(1 + AHEAD)]
        await waiting(cluster, client, 12 - len(given))
        mine = ask(client, "ben")
        page = await waiting(cluster, client, 13 - len(given))
        assert f"baton_router_waiting_tokens {8 * (13 - len(given))}.0" in page
        await end(rank, given[0])
        start = await within(rank.starts.get())
        assert start.client_id == "ben"
        assert start.priority == 1, "passes what the rank was given before"
        rank.answer = lambda start: [tokens_of(start, [20], last=True)]
        await end(rank, start)
        assert (await mine).status_code == 200
        for each in given[1:]:
            await end(rank, each)
        assert {reply.status_code for reply in await asyncio.gather(*flood)} <= {200}


async def test_the_first_of_those_that_wait_is_asked_for_the_state_that_they_share(
    tmp_path: Path,
) -> None:
    worker = FakeWorker("p0")
    worker.settings = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
                       "mamba_checkpoint_grid": "4"}  # fmt: skip
    async with served(tmp_path, worker) as (cluster, rank, client):
        flood = [ask(client, "ada") for _ in range(1 + AHEAD)]
        given = [await within(rank.starts.get()) for _ in flood]
        assert not any(start.junctions for start in given)
        for count, ends in enumerate((7, 8, 9), 1):  # one after the other: they wait in this order
            flood.append(ask(client, "ada", prompt=[*range(10), *[ends] * 6]))
            await waiting(cluster, client, count)
        found = []
        for each in given:
            await end(rank, each)
            found.append(await within(rank.starts.get()))
        assert [list(start.junctions) for start in found] == [[8], [], []], (
            "the first will have left it"
        )
        for each in found:
            await end(rank, each)
        assert {reply.status_code for reply in await asyncio.gather(*flood)} == {200}


async def test_a_rank_is_told_to_compute_what_would_wait_for_the_prefill_worker(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, prefill_here=5) as (cluster, rank, client):
        asked = []
        for prompt, here in (([1] * 5, False), ([2] * 6, False), ([3] * 5, True)):
            task = ask(client, "ada", prompt=prompt)
            start = await within(rank.starts.get())
            assert (list(start.prompt_ids), start.prefill_here) == (prompt, here)
            assert start.prefills, "for where the rank cannot"
            asked.append((task, start))
        for task, start in asked:
            await end(rank, start)
            assert (await task).status_code == 200
        page = (await client.get("/metrics", headers=cluster.headers)).text
        for name, count in (("p0", 2), ("d0", 1)):
            assert f'baton_router_prefill_placements_total{{worker="{name}"}} {count}.0' in page
        for reason in ("fewer_there", "long", "here"):
            assert f'baton_router_prompts_placed_total{{reason="{reason}"}} 1.0' in page


async def test_a_prompt_that_a_rank_computes_leaves_its_place_at_the_prefill_worker(
    tmp_path: Path,
) -> None:
    worker = FakeWorker("p0")
    worker.settings = {"chunked_prefill_size": "4"}  # so it is given two prompts, and not by tokens
    async with served(tmp_path, worker, prefill_here=5) as (_, rank, client):
        asked = []
        for prompt, here in (([1] * 5, False), ([2] * 5, True), ([3] * 6, False)):
            task = ask(client, "ada", prompt=prompt)
            start = await within(rank.starts.get())
            assert (list(start.prompt_ids), start.prefill_here) == (prompt, here)
            asked.append((task, start))
        for task, start in asked:
            await end(rank, start)
            assert (await task).status_code == 200


async def test_an_idle_rank_is_room_for_a_prompt_that_would_wait(tmp_path: Path) -> None:
    """Nobody has measured a speed yet: a token counts as long everywhere."""
    worker = FakeWorker("p0")
    worker.settings = {"chunked_prefill_size": "4"}  # so it is given two prompts, and not by tokens
    async with served(tmp_path, worker) as (cluster, rank, client):
        rank.max_running = 8
        await cluster.until(lambda workers: workers["d0"]["max_running"] == 8)
        asked, starts = [], []
        for number, here in enumerate((False, True, False), 1):
            asked.append(ask(client, "ada", prompt=[number] * 5))
            starts.append(await within(rank.starts.get()))
            assert (list(starts[-1].prompt_ids), starts[-1].prefill_here) == ([number] * 5, here)
        asked.append(ask(client, "ada", prompt=[4] * 5))
        await waiting(cluster, client, 1)
        assert rank.starts.empty(), "no worker is given more than its next prompt"
        rank.send(tokens_of(starts[1], [20]))  # its own prompt is computed
        fourth = await within(rank.starts.get())
        assert fourth.prefill_here, "the answer loses less than this prompt gains"
        await end(rank, fourth)
        rank.send(tokens_of(starts[1], [21], first_index=1, last=True))
        for start in (starts[0], starts[2]):
            await end(rank, start)
        assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200] * 4


async def test_a_client_that_goes_away_while_it_waits_costs_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, rank, client):
        asked = [ask(client, "ada") for _ in range(1 + AHEAD)]
        given = [await within(rank.starts.get()) for _ in asked]
        gone = [ask(client, "ada", stream=stream) for stream in (True, False)]
        await waiting(cluster, client, 2)
        for each in gone:
            each.cancel()
        await waiting(cluster, client, 0)
        for start in given:
            await end(rank, start)
        assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200] * 3
        last = ask(client, "ada")
        await end(rank, await within(rank.starts.get()))
        assert (await last).status_code == 200
        assert rank.starts.empty() and rank.cancels.empty(), "the rank never heard of them"
        page = (await client.get("/metrics", headers=cluster.headers)).text
        assert 'baton_router_requests_total{outcome="cancelled"} 2.0' in page
        assert 'baton_router_key_tokens_total{key="ada",kind="prompt"} 20.0' in page


async def test_a_full_queue_refuses_before_it_reads_and_says_when_to_come(tmp_path: Path) -> None:
    async with served(tmp_path, max_queued=3) as (cluster, rank, client):
        asked = [ask(client, "ada") for _ in range(4)]
        given = [await within(rank.starts.get()) for _ in range(1 + AHEAD)]
        await waiting(cluster, client, 1)
        headers = {"x-api-key": TEXTS["ada"], "content-type": "application/json"}
        for path in ("/v1/completions", "/v1/messages", "/generate"):
            reply = await client.post(path, content=b"no JSON" * 100_000, headers=headers)
            assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
            assert "x-ratelimit-limit-requests" not in reply.headers, "the key has no cap"
        other = await client.post(
            "/v1/completions", content=b"no JSON", headers=headers | {"x-api-key": TEXTS["ben"]}
        )
        assert other.status_code == 400, "another key has room"
        mine = ask(client, "ben")
        (displaced,) = (await within(asyncio.wait(asked, return_when="FIRST_COMPLETED")))[0]
        reply = displaced.result()
        assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
        assert "other API keys" in reply.json()["error"]["message"]
        await end(rank, given[0])
        start = await within(rank.starts.get())
        assert start.client_id == "ben"
        for each in (start, *given[1:]):
            await end(rank, each)
        assert (await mine).status_code == 200
        page = (await client.get("/metrics", headers=cluster.headers)).text
        assert 'baton_router_queue_refusals_total{reason="full"} 3.0' in page
        assert 'baton_router_queue_refusals_total{reason="displaced"} 1.0' in page
        await asyncio.gather(*asked)


async def test_a_request_that_waits_ends_at_its_timeout_or_by_an_abort(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, rank, client):
        asked = [ask(client, "ada") for _ in range(1 + AHEAD)]
        given = [await within(rank.starts.get()) for _ in asked]
        late, aborted = ask(client, "ben", timeout=0.2), ask(client, "ben", rid="mine")
        assert (await late).status_code == 504
        await waiting(cluster, client, 1)
        reply = await client.post(
            "/abort_request", json={"rid": "mine"}, headers={"x-api-key": TEXTS["ben"]}
        )
        assert reply.json() == {"aborted": 1}
        assert (await aborted).json()["error"]["code"] == "cancelled"
        await waiting(cluster, client, 0)
        for each in given:
            await end(rank, each)
        await asyncio.gather(*asked)
        assert rank.starts.empty()


async def test_the_status_says_what_waits(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, rank, client):
        asked = [ask(client, "ada") for _ in range(5)]
        given = [await within(rank.starts.get()) for _ in range(1 + AHEAD)]
        await waiting(cluster, client, 2)
        info = (await client.get("/server_info", headers=cluster.headers)).json()["router"]
        assert (info["waiting"], info["waiting_tokens"]) == (2, 16)
        assert (info["active"], info["capacity"], info["queued"]) == (5, 1, 4)
        assert json.dumps(info["drain_tokens_per_s"]) == "0.0"
        rank.answer = lambda start: [tokens_of(start, [20], last=True)]
        for each in given:
            await end(rank, each)
        await asyncio.gather(*asked)
        info = (await client.get("/server_info", headers=cluster.headers)).json()["router"]
        assert info["waiting"] == 0 and info["drain_tokens_per_s"] > 0


@pytest.mark.parametrize("ranks", [2, 3])
async def test_a_full_rank_is_passed_over_while_another_has_room(
    tmp_path: Path, ranks: int
) -> None:
    async with Cluster(tmp_path) as cluster:
        everyone = [FakeRank(f"d{i}") for i in range(ranks)]
        for rank in everyone:
            rank.max_running = 2
        await cluster.add(FakeWorker("p0"), *everyone)
        calls = [cluster.generate([11, 12]) for _ in range(3 * ranks)]
        starts = [await within(rank.starts.get()) for rank in everyone for _ in range(3)]
        calls += [cluster.generate([11]) for _ in range(3)]
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            await waiting(cluster, client, 3)
        # One rank ends all of its requests: what comes next goes there alone.
        for start in starts[:3]:
            everyone[0].send(tokens_of(start, [20], last=True))
        for _ in range(3):
            assert list((await within(everyone[0].starts.get())).prompt_ids) == [11]
        assert all(rank.starts.empty() for rank in everyone)
        for call in calls:
            call.cancel()
