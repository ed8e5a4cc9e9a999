"""Requests that a router takes back from workers that are full: real sessions, played ranks."""

from pathlib import Path

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from router_neighbours import Cluster, replies_of

from baton.proto.worker_pb2 import RankMessage, Recalled, StartRequest


def rank_of(name: str, places: int) -> FakeRank:
    rank = FakeRank(name)
    rank.max_running = places
    return rank


def give_back(rank: FakeRank, start: StartRequest, returned: bool = True) -> None:
    answer = Recalled(request_id=start.request_id, attempt=start.attempt, returned=returned)
    rank.send_message(RankMessage(recalled=[answer]))


async def returns(cluster: Cluster) -> str:
    """Return the lines of the metric, without its comments."""
    async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
        page = (await client.get("/metrics")).text
    return "\n".join(
        line
        for line in page.splitlines()
        if line.startswith(("baton_router_returns_total", "baton_router_retries_total"))
    )


async def test_a_rank_that_joins_is_given_what_waits_at_a_full_one(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        full, new = rank_of("d0", 2), rank_of("d1", 2)
        await cluster.add(FakeWorker("p0"), full)
        calls = [cluster.generate([11 + i], max_tokens=2) for i in range(4)]
        starts = [await within(full.starts.get()) for _ in range(4)]
        full.send(*(tokens_of(start, [20]) for start in starts))  # all are computed
        full.send(*(tokens_of(start, [21], first_index=1) for start in starts[:2]))
        await cluster.add(new)
        asked = [await within(full.recalls.get()) for _ in range(2)]
        assert [each.request_id for each in asked] == [s.request_id for s in starts[:1:-1]]
        assert all(each.attempt == 1 and each.computed for each in asked)
        assert new.starts.empty(), "the rank has them until it says otherwise"
        give_back(full, starts[2])
        give_back(full, starts[3], returned=False)
        again = await within(new.starts.get())
        assert (again.request_id, again.attempt) == (starts[2].request_id, 2)
        assert list(again.output_ids) == [20]
        new.send(tokens_of(again, [21], first_index=1, last=True))
        full.send(tokens_of(starts[3], [21], first_index=1, last=True))
        full.send(*(tokens_of(start, [], first_index=2, last=True) for start in starts[:2]))
        for call in calls:
            replies = await within(replies_of(call))
            assert [t for reply in replies for t in reply.token_ids] == [20, 21]
        lines = await returns(cluster)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            told = (await client.get(f"/explain/{again.request_id}")).json()["attempts"]
        assert [each["end"] for each in told] == ["returned", "length"]
        assert told[0]["why"] == "d0 had more requests than it runs, and another rank a free place"
        assert 'returns_total{dp_group="0",dp_rank="0",worker="d0"} 1.0' in lines
        assert 'retries_total{dp_group="0",dp_rank="0",worker="d0"} 0.0' in lines


async def test_an_idle_prefill_worker_is_given_what_waits_at_another(tmp_path: Path) -> None:
    async with Cluster(tmp_path, prefill_here=0) as cluster:
        rank = rank_of("d0", 9)
        await cluster.add(FakeWorker("p0"), rank)
        calls = [cluster.generate([11 + i] * 50, max_tokens=1) for i in range(3)]
        starts = [await within(rank.starts.get()) for _ in calls]
        assert rank.recalls.empty()
        await cluster.add(FakeWorker("p1"))
        asked = await within(rank.recalls.get())
        assert asked.request_id == starts[-1].request_id and not asked.computed
        give_back(rank, starts[-1])
        again = await within(rank.starts.get())
        assert [each.worker_id for each in again.prefills] == ["p1", "p0"]
        rank.send(*(tokens_of(each, [20], last=True) for each in (*starts[:2], again)))
        for call in calls:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]
        assert rank.recalls.empty(), "each has one now"


async def test_a_rank_that_does_not_know_recalls_keeps_what_it_has(tmp_path: Path) -> None:
    """One of the release before answers none of them; the router asks now and then."""
    async with Cluster(tmp_path) as cluster:
        older, new = rank_of("d0", 1), rank_of("d1", 1)
        await cluster.add(FakeWorker("p0"), older)
        calls = [cluster.generate([11 + i], max_tokens=1) for i in range(2)]
        starts = [await within(older.starts.get()) for _ in calls]
        await cluster.add(new)
        asked = [await within(older.recalls.get()) for _ in range(2)]
        assert {each.request_id for each in asked} <= {start.request_id for start in starts}
        older.send(*(tokens_of(start, [20], last=True) for start in starts))
        for call in calls:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]
        assert new.starts.empty() and "returns_total{" in (lines := await returns(cluster))
        assert 'returns_total{dp_group="0",dp_rank="0",worker="d0"} 0.0' in lines


@pytest.mark.parametrize("end", ["abort", "death"])
async def test_what_is_given_back_can_still_end(tmp_path: Path, end: str) -> None:
    async with Cluster(tmp_path) as cluster:
        full, new = rank_of("d0", 1), rank_of("d1", 1)
        await cluster.add(FakeWorker("p0"), full)
        calls = [cluster.generate([11], max_tokens=1)]  # two at once may come in any order
        first = await within(full.starts.get())
        calls.append(cluster.generate([12], max_tokens=1))
        second = await within(full.starts.get())
        await cluster.add(new)
        await within(full.recalls.get())
        if end == "abort":
            calls[1].cancel()
            assert (await within(full.cancels.get())).request_id == second.request_id
            give_back(full, second)  # crossed on the way
            full.send(tokens_of(first, [20], last=True))
        else:
            give_back(full, second)
            full.hang_up()
            started = [await within(new.starts.get()) for _ in range(2)]
            assert {each.request_id for each in started} == {first.request_id, second.request_id}
            new.send(*(tokens_of(each, [20], last=True) for each in started))
        for call in calls[: 1 if end == "abort" else 2]:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]
        await cluster.until_active(0)
        await cluster.until(lambda workers: not any(w["placed"] for w in workers.values()))
        assert new.starts.empty()


async def test_a_rank_that_has_computed_its_prompt_is_given_what_a_prefill_worker_has_ahead(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = rank_of("d0", 9)
        await cluster.add(FakeWorker("p0"), rank)
        starts: list[StartRequest] = []
        calls: list[object] = []
        for tokens in (300, 40, 50):
            calls.append(cluster.generate([11 + len(calls)] * tokens, max_tokens=1))
            starts.append(await within(rank.starts.get()))
        assert [each.prefill_here for each in starts] == [False, True, False]
        assert rank.recalls.empty(), "the rank has a prompt of its own"
        rank.send(tokens_of(starts[1], [20], last=True))
        asked = await within(rank.recalls.get())
        assert (asked.request_id, asked.computed) == (starts[2].request_id, False)
        give_back(rank, starts[2])
        again = await within(rank.starts.get())
        assert (again.request_id, again.attempt) == (starts[2].request_id, 2)
        assert again.prefill_here
        rank.send(*(tokens_of(each, [20], last=True) for each in (starts[0], again)))
        for call in calls:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as client:
            told = (await client.get(f"/explain/{again.request_id}")).json()["attempts"]
        assert told[0]["why"] == "d0 had no prompt to compute while it waited for p0"


async def test_an_idle_prefill_worker_is_given_what_a_rank_has_not_begun(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = rank_of("d0", 9)
        await cluster.add(FakeWorker("p0"), rank)
        calls = [cluster.generate([11] * 300, max_tokens=1)]
        first = await within(rank.starts.get())
        calls.append(cluster.generate([12] * 40, max_tokens=1))
        own = await within(rank.starts.get())
        assert (first.prefill_here, own.prefill_here) == (False, True)
        rank.send(tokens_of(first, [20], last=True))
        asked = await within(rank.recalls.get())
        assert (asked.request_id, asked.computed) == (own.request_id, True)
        give_back(rank, own)
        again = await within(rank.starts.get())
        assert (again.request_id, again.prefill_here) == (own.request_id, False)
        assert [each.worker_id for each in again.prefills] == ["p0"]
        rank.send(tokens_of(again, [20], last=True))
        for call in calls:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]


async def test_a_prompt_that_its_rank_has_begun_stays_there(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = rank_of("d0", 9)
        await cluster.add(FakeWorker("p0"), rank)
        calls = [cluster.generate([11] * 300, max_tokens=1)]
        first = await within(rank.starts.get())
        calls.append(cluster.generate([12] * 40, max_tokens=1))
        own = await within(rank.starts.get())
        rank.send(tokens_of(first, [20], last=True))
        asked = await within(rank.recalls.get())
        give_back(rank, own, returned=False)
        assert (await within(rank.recalls.get())) == asked, "it asks again now and then"
        rank.send(tokens_of(own, [20], last=True))
        for call in calls:
            assert [t for reply in await within(replies_of(call)) for t in reply.token_ids] == [20]
        assert rank.starts.empty()
