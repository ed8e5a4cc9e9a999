"""Tests of the states that the router remembers from finished answers and reports to the next
placement."""

import gc
import random
import tracemalloc
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, within
from router_neighbours import Cluster, random_ids, replies_of

from baton.core.cache_salt import make_salt
from baton.proto import common_pb2
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import CacheReport, RequestTokens, StartRequest
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.text.prefix_digest import PrefixDigest, PromptPrefixes


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def table() -> WorkerTable:
    return WorkerTable(1.0, lambda: 0.0)


def join(table: WorkerTable, name: str, incarnation: int = 1) -> Worker:
    identity = WorkerIdentity(
        worker_id=name, incarnation=incarnation, address="a:1", role=DECODE, rank=int(name[1:])
    )
    return table.register(
        Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            worker=identity,
        )
    )


def names(found: Mapping[str, int]) -> list[tuple[int, str]]:
    """The deepest state first."""
    deepest = sorted(found, key=lambda name: (-found[name], name))
    return [(found[name], name) for name in deepest]


def test_the_rank_with_the_deepest_state_is_named_first(table: WorkerTable) -> None:
    index, first, second = StateIndex(table), join(table, "d0"), join(table, "d1")
    index.add(first, (1, 2))
    index.add(second, (1, 2, 3, 4))
    index.add(first, (9, 9, 9))
    assert names(index.find(PromptPrefixes((1, 2, 3, 4, 5)))) == [(4, "d1"), (2, "d0")]
    assert names(index.find(PromptPrefixes((1, 2, 3, 4)))) == [(2, "d0")], (
        "one token must be left to compute"
    )
    assert index.find(PromptPrefixes((2, 1, 3))) == {}


def test_all_that_have_a_state_are_named_and_each_can_lose_it(table: WorkerTable) -> None:
    index = StateIndex(table)
    ranks = [join(table, name) for name in ("d10", "d2", "d1")]
    for rank in ranks:
        index.add(rank, (1, 2))
    assert index.find(PromptPrefixes((1, 2, 3))) == {"d10": 2, "d2": 2, "d1": 2}
    table.remove(ranks[1], "lost")
    assert index.find(PromptPrefixes((1, 2, 3))) == {"d10": 2, "d1": 2}
    index.add(join(table, "d3"), (1,))
    assert index.find(PromptPrefixes((1, 2, 3))) == {"d10": 2, "d1": 2, "d3": 1}


def test_a_rank_that_leaves_is_gone_or_was_started_again_is_not_named(table: WorkerTable) -> None:
    index = StateIndex(table)
    ranks = [join(table, f"d{i}") for i in range(4)]
    for rank in ranks:
        index.add(rank, (1, 2))
    table.report(ranks[0], None, leaving=True)
    table.remove(ranks[1], "lost")
    join(table, "d2", incarnation=2)
    join(table, "d3")  # its stream broke; its process is the same
    assert index.find(PromptPrefixes((1, 2, 3))) == {}, "d3 says itself what it has"
    assert not len(index) - 1, "d0 has not left yet"


def test_a_prefill_worker_is_not_taken_for_a_rank_of_its_name(table: WorkerTable) -> None:
    index = StateIndex(table)
    index.add(join(table, "d0"), (1, 2))
    identity = WorkerIdentity(worker_id="d0", incarnation=1, address="a:1", role=PREFILL)
    table.register(
        Hello(
            protocol_major=PROTOCOL_MAJOR,
            protocol_minor=PROTOCOL_MINOR,
            worker=identity,
        )
    )
    assert index.find(PromptPrefixes((1, 2, 3))) == {}


def test_a_state_is_named_to_requests_of_its_salt_alone(table: WorkerTable) -> None:
    index, rank, ada = StateIndex(table), join(table, "d0"), make_salt("ada")
    index.add(rank, (1, 2), ada)
    assert names(index.find(PromptPrefixes((1, 2, 3), ada))) == [(2, "d0")]
    for salt in (b"", make_salt("bob")):
        assert index.find(PromptPrefixes((1, 2, 3), salt)) == {}


def finished(start: StartRequest, answer: list[int], state_tokens: int) -> RequestTokens:
    done = common_pb2.Finished(reason=common_pb2.LENGTH, state_tokens=state_tokens)
    return RequestTokens(
        request_id=start.request_id,
        attempt=start.attempt,
        first_index=len(start.output_ids),
        token_ids=answer,
        finished=done,
    )


async def test_the_next_turn_is_told_where_the_last_one_left_its_state(
    tmp_path: Path, rng: random.Random
) -> None:
    prompt, answer, more = (random_ids(rng, n) for n in (10, 12, 5))
    turn = [*prompt, *answer, *more]
    async with Cluster(tmp_path, policy="round_robin") as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first, second)
        call = cluster.generate(prompt, max_tokens=12)
        start = await within(first.starts.get())
        assert not start.HasField("state_at")
        first.send(finished(start, answer, state_tokens=16))
        await within(replies_of(call))

        call = cluster.generate(turn, max_tokens=3)
        start = await within(second.starts.get())
        assert (start.state_at.worker, start.state_at.tokens) == (first.identity, 16)
        second.send(finished(start, [7, 8, 9], state_tokens=0))  # too short for a state
        await within(replies_of(call))

        call = cluster.generate([*prompt, *more], max_tokens=3)
        start = await within(first.starts.get())
        assert not start.HasField("state_at"), "another conversation"
        first.send(finished(start, [7, 8, 9], state_tokens=0))
        await within(replies_of(call))


async def test_an_answer_that_is_lost_may_go_on_from_another_ranks_state(
    tmp_path: Path, rng: random.Random
) -> None:
    prompt, answer = random_ids(rng, 10), random_ids(rng, 12)
    async with Cluster(tmp_path, policy="round_robin") as cluster:
        keeper, lost, other = FakeRank("d0"), FakeRank("d1"), FakeRank("d2")
        await cluster.add(FakeWorker("p0"), keeper)
        call = cluster.generate(prompt, max_tokens=12)
        keeper.send(finished(await within(keeper.starts.get()), answer, state_tokens=16))
        await within(replies_of(call))

        await cluster.add(lost)
        call = cluster.generate(prompt, max_tokens=12)  # by turns: on d1
        start = await within(lost.starts.get())
        assert not start.HasField("state_at"), "the state is deeper than the prompt"
        lost.send(RequestTokens(
            request_id=start.request_id, attempt=1, token_ids=answer[:8]
        ))  # fmt: skip
        await within(call.read())
        await cluster.add(other)
        await cluster.until(lambda workers: bool(workers["d2"]["ready"]))
        lost.hang_up()
        start = await within(other.starts.get())
        assert (start.state_at.worker, start.state_at.tokens) == (keeper.identity, 16)
        other.send(finished(start, answer[8:], state_tokens=0))
        await within(replies_of(call))


async def test_a_flush_forgets_the_states(tmp_path: Path, rng: random.Random) -> None:
    prompt, answer = random_ids(rng, 10), random_ids(rng, 12)
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)
        call = cluster.generate(prompt, max_tokens=12)
        rank.send(finished(await within(rank.starts.get()), answer, state_tokens=16))
        await within(replies_of(call))
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            assert (await http.post("/flush_cache")).status_code == 200
        call = cluster.generate([*prompt, *answer, 7], max_tokens=1)
        start = await within(rank.starts.get())
        assert not start.HasField("state_at")
        rank.send(finished(start, [7], state_tokens=0))
        await within(replies_of(call))


def report(has: Mapping[tuple[int, ...], bytes], **fields: object) -> CacheReport:
    """A whole report of prefixes and their salts."""
    made = [PrefixDigest(salt).add(array("I", ids).tobytes()) for ids, salt in has.items()]
    return CacheReport(whole=True, made=made, depths=map(len, has), **fields)  # type: ignore[arg-type]


def test_reports_replace_add_and_remove(table: WorkerTable) -> None:
    index, first, second = StateIndex(table), join(table, "d0"), join(table, "d1")
    one, two = (digest(ids) for ids in ((1,), (1, 2)))
    assert index.report(first, report({(1, 2): b"", (1, 2, 3): b"salt"}, sequence=4))
    assert names(index.find(PromptPrefixes((1, 2, 3, 4)))) == [(2, "d0")]
    assert names(index.find(PromptPrefixes((1, 2, 3, 4), b"salt"))) == [(3, "d0")]
    assert index.report(second, report({(1,): b""}, sequence=1))
    assert names(index.find(PromptPrefixes((1, 2, 3, 4)))) == [(2, "d0"), (1, "d1")]
    changes = CacheReport(sequence=6, after=4, made=[one], depths=[1], evicted=[two])
    assert index.report(first, changes)
    assert names(index.find(PromptPrefixes((1, 2, 3, 4)))) == [(1, "d0"), (1, "d1")]
    assert index.report(first, report({}, sequence=7))
    assert names(index.find(PromptPrefixes((1, 2, 3, 4)))) == [(1, "d1")]
    assert len(index) == 1


def test_changes_that_follow_a_report_that_did_not_come_are_not_applied(
    table: WorkerTable,
) -> None:
    index, rank = StateIndex(table), join(table, "d0")
    changes = CacheReport(sequence=6, after=5, made=[digest((1,))], depths=[1])
    assert not index.report(rank, changes), "a whole one comes first"
    assert index.report(rank, report({}, sequence=4))
    assert not index.report(rank, changes)
    assert index.find(PromptPrefixes((1, 2))) == {}
    assert index.report(rank, report({(1,): b""}, sequence=6))
    assert names(index.find(PromptPrefixes((1, 2)))) == [(1, "d0")]


def test_the_index_is_bounded_and_a_workers_oldest_go_first(table: WorkerTable) -> None:
    index, rank, other = StateIndex(table, most=3), join(table, "d0"), join(table, "d1")
    index.add(other, (9,))
    for number in range(1, 6):
        index.add(rank, tuple(range(number)))
    assert len(index) == 3
    assert names(index.find(PromptPrefixes((9, 9)))) == [(1, "d1")]
    assert names(index.find(PromptPrefixes(tuple(range(9))))) == [(5, "d0")]
    assert index.find(PromptPrefixes(tuple(range(4)))) == {}


def digest(token_ids: Sequence[int]) -> int:
    return PrefixDigest().add(array("I", token_ids).tobytes())


def test_a_full_index_takes_at_most_256_bytes_an_entry(
    table: WorkerTable, rng: random.Random
) -> None:
    """However many workers share prefixes, and however often their caches change."""
    most = 20_000
    ranks = [join(table, f"d{number}") for number in range(40)]
    shared = [rng.getrandbits(64) for _ in range(100)]
    tracemalloc.start()
    try:
        index = StateIndex(table, most)
        for turn in range(2):
            for rank in ranks:
                made = [*shared, *(rng.getrandbits(64) for _ in range(most // 30))]
                depths = [256 * rng.randrange(1, 500) for _ in made]
                index.report(rank, CacheReport(sequence=turn, after=0, whole=not turn, made=made,
                                               depths=depths))  # fmt: skip
        gc.collect()
        taken, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == most
    assert peak < 256 * most, taken
    for rank in ranks:
        table.remove(rank, "lost")
    assert not len(index)


async def test_a_router_asks_again_for_a_cache_of_which_it_missed_changes(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        worker = FakeWorker("p0")
        await cluster.add(worker)
        cache = CacheReport(sequence=6, after=5, made=[digest((1,))], depths=[1])
        worker.report(cache=cache)
        reply = await within(worker.replies.get())
        assert reply is not None and reply.cache_wanted


def test_what_workers_lose_is_logged_with_the_way_it_went(table: WorkerTable) -> None:
    index, first, second = StateIndex(table), join(table, "d0"), join(table, "d1")
    prompt = PromptPrefixes((1, 2, 3, 4))

    def lost() -> list[tuple[str, int, str]]:
        found = index.evictions.find(prompt)
        return [(each.worker, each.tokens, each.how.value) for each in found]

    one, two = (digest(ids) for ids in ((1,), (1, 2)))
    assert index.report(first, report({(1,): b"", (1, 2): b""}, sequence=1))
    assert index.report(second, report({(1,): b"", (1, 2, 3): b""}, sequence=1))
    assert lost() == []
    unknown = digest((1, 2, 3, 4))
    assert index.report(first, CacheReport(sequence=2, after=1, evicted=[two, unknown]))
    assert lost() == [("d0", 2, "evicted")]
    assert index.report(second, report({(1, 2, 3): b"", (1, 2): b""}, sequence=5))
    assert lost()[1:] == [("d1", 1, "evicted")], "the whole list lacks it"
    table.remove(second, "lost")
    assert sorted(lost()[2:]) == [("d1", 2, "worker gone"), ("d1", 3, "worker gone")]
    index.clear()
    assert lost()[4:] == [("d0", 1, "flushed")]
    assert index.report(first, CacheReport(sequence=3, after=2, evicted=[one]))
    assert len(lost()) == 5, "the worker's word of the flush is nothing new"


def test_what_a_worker_reports_lost_while_others_are_flushed_was_flushed(
    table: WorkerTable,
) -> None:
    index, worker = StateIndex(table), join(table, "d0")
    prompt = PromptPrefixes((1, 2))
    assert index.report(worker, report({(1,): b"", (1, 2): b""}, sequence=1))
    with index.flushing():
        assert index.report(worker, CacheReport(sequence=2, after=1, evicted=[digest((1, 2))]))
    ways = [(each.tokens, each.how.value) for each in index.evictions.find(prompt)]
    assert ways == [(2, "flushed"), (1, "flushed")] and len(index) == 0
