"""Tests of the reasons for placements: what is kept, what is said of a request, and to whom."""

import asyncio
import json
import random
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from kit.polling import until_answered
from router_neighbours import Cluster, random_ids, replies_of

from baton.api.access.keys import Key, KeyScope, digest_of, write_keys
from baton.api.backend import GenerateRequest
from baton.core.errors import ApiError
from baton.core.sampling_params import SamplingParams
from baton.deploy.terminal.explanation_text import explanation_lines
from baton.proto import inference_pb2
from baton.proto.common_pb2 import PromptSource, StateFetch
from baton.proto.worker_pb2 import CacheReport, RequestTokens, StartRequest
from baton.router.cluster_view.eviction_log import EvictionLog, Loss, LostState
from baton.router.explain.explanations import Explanations
from baton.router.request_times import RequestTimes
from baton.router.sessions.live_requests import LiveRequest, LiveRequests
from baton.text.prefix_digest import PrefixDigest, PromptPrefixes

SOURCE = PromptSource(reader="p1", state_tokens=16, kv_tokens=32, rank_kv_tokens=8, host_tokens=8,
                      fetch=StateFetch(source="d0", tokens=16, outcome="fetched", took_us=2500),
                      failed=["p0 was lost"])  # fmt: skip


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def digest(ids: Sequence[int], salt: bytes = b"") -> int:
    return PrefixDigest(salt).add(array("I", ids).tobytes())


# What is remembered of lost states.


def test_lost_states_of_a_prompt_are_found_oldest_first() -> None:
    now = [0.0]
    log = EvictionLog(lambda: now[0])
    log.add("p0", Loss.EVICTED, {digest((1, 2)): 2, digest((9,)): 1})
    now[0] = 3.0
    log.add("p1", Loss.FLUSHED, {digest((1,)): 1, digest((1, 2, 3, 4)): 4})
    log.add("p2", Loss.EVICTED, {})
    assert log.find(PromptPrefixes((1, 2, 3))) == [
        LostState(0.0, "p0", 2, Loss.EVICTED),
        LostState(3.0, "p1", 1, Loss.FLUSHED),
    ]
    assert log.find(PromptPrefixes((1, 2, 3), b"salt")) == []
    assert len(log) == 4


def test_the_log_of_lost_states_is_bounded_and_keeps_the_newest(rng: random.Random) -> None:
    log = EvictionLog(lambda: 0.0, most=10)
    for number in range(1, 30):
        log.add("p0", Loss.EVICTED, {digest(range(number)): number})
        assert len(log) <= 10
    found = log.find(PromptPrefixes(range(100)))
    assert [each.tokens for each in found] == list(range(20, 30))
    log.add("p1", Loss.FLUSHED, {digest(range(100, 100 + n)): n for n in range(1, 100)})
    assert len(log) == 10
    many = log.find(PromptPrefixes(range(100, 300)))
    assert sorted(each.tokens for each in many) == list(range(90, 100))


# What is remembered of requests.


def ended(prompt: Sequence[int], number: int = 0, owner: str | None = None) -> LiveRequest:
    """A request that had a worker; the explanation of an attempt has tests of its own."""
    request = GenerateRequest(
        f"{number:032x}", tuple(prompt), SamplingParams(), client_id="mine", owner=owner
    )
    return LiveRequest(request, RequestTimes(float(number)), placed=[])


def test_the_newest_requests_are_kept_within_both_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explanations, "_explain", lambda self, found: {"id": found.request_id})
    log = EvictionLog(lambda: 0.0)
    kept = Explanations("r", LiveRequests(), log, lambda: 9.5, 4, most_tokens=20)
    never_placed = ended([1], 99)
    kept.keep(never_placed)
    for number in range(1, 8):
        live = ended([1] * 5, number)
        live.placed = [object()]  # type: ignore[list-item]  # any attempt
        kept.keep(live)
    for number in (1, 2, 3, 99):
        with pytest.raises(ApiError, match=r"the last 4 requests .* more than 20 tokens") as error:
            kept.find(f"{number:032x}", None)
        assert error.value.status.http == 404
    assert kept.find(f"cmpl-{4:032x}", None)["id"] == f"{4:032x}"
    assert kept.find("mine", None) == {
        "id": f"{7:032x}", "age_s": 2.5, "same_name": [f"{number:032x}" for number in (4, 5, 6)],
    }  # fmt: skip
    long = ended([1] * 20, 8)
    long.placed = [object()]  # type: ignore[list-item]
    kept.keep(long)
    assert kept.find("mine", None) == {"id": f"{8:032x}", "age_s": 1.5, "same_name": []}


# What is said, through the whole router.


@asynccontextmanager
async def served(
    folder: Path, **options: Any
) -> AsyncIterator[tuple[Cluster, list[FakeWorker], httpx.AsyncClient]]:
    """Two prefill workers and two ranks that end every answer at once."""

    def answer(start: StartRequest) -> Iterable[RequestTokens]:
        tokens = tokens_of(start, [20], last=True)
        tokens.finished.source.CopyFrom(SOURCE)
        return [tokens]

    async with Cluster(folder, **options) as cluster:
        workers = [FakeWorker("p0"), FakeWorker("p1")]
        workers += [FakeRank(f"d{i}", answer=answer) for i in range(2)]
        await cluster.add(*workers)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            yield cluster, workers, http


async def known(http: httpx.AsyncClient, count: int) -> None:
    """Wait until the router knows so many states."""

    async def knows_them() -> bool:
        info = (await http.get("/server_info")).json()
        return bool(info["router"]["cached_prefixes"] == count)

    await until_answered(knows_them)


async def ask(http: httpx.AsyncClient, ids: Sequence[int], **more: Any) -> dict[str, Any]:
    reply = await http.post("/v1/completions", json={"prompt": ids, "max_tokens": 4, **more})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def explained(http: httpx.AsyncClient, name: str, **more: Any) -> dict[str, Any]:
    reply = await http.get(f"/explain/{name}", **more)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_what_was_cached_what_was_lost_and_what_it_cost(
    tmp_path: Path, rng: random.Random
) -> None:
    prompt = random_ids(rng, 40)
    async with served(tmp_path, policy="prefix_aware") as (_, workers, http):
        made = [digest(prompt[:16]), digest(prompt[:32])]
        workers[0].report(cache=CacheReport(sequence=1, whole=True, made=made, depths=[16, 32]))
        shorter = [digest(prompt[:8]), made[0]]
        workers[1].report(cache=CacheReport(sequence=1, whole=True, made=shorter, depths=[8, 16]))
        workers[2].report(cache=CacheReport(sequence=1, whole=True, made=made[:1], depths=[16]))
        await known(http, 5)
        workers[0].report(cache=CacheReport(sequence=2, after=1, evicted=made))
        workers[1].report(cache=CacheReport(sequence=2, after=1, evicted=shorter[:1]))
        await known(http, 2)
        reply = await ask(http, prompt, rid="me")
        found = await explained(http, reply["id"])
        again = await explained(http, "me")
        assert again["age_s"] >= found["age_s"] >= 0
        assert {**again, "age_s": found["age_s"]} == found
        lines = list(explanation_lines(found, None))
    assert (found["status"], found["outcome"]) == ("ended", "length")
    assert (found["prompt_tokens"], found["output_tokens"]) == (40, 1)
    assert found["timings"] == reply["timings"] and found["client_id"] == "me"
    assert found["computed"] == {
        "attempt": 1, "by": "p1", "cached_state_tokens": 16, "cached_kv_tokens": 32,
        "host_tokens": 8, "file_tokens": 0, "computed_tokens": 24, "rank_kv_tokens": 8,
        "sent_kv_tokens": 32,
        "fetch": {"from": "d0", "tokens": 16, "outcome": "fetched", "ms": 2.5},
        "failed": ["p0 was lost"],
    }  # fmt: skip
    (lost,) = found["lost_states"]
    assert (lost["worker"], lost["tokens"], lost["how"]) == ("p0", 32, "evicted")
    assert lost["before_placement_s"] >= 0
    (attempt,) = found["attempts"]
    assert attempt["policy"] == "prefix_aware" and attempt["end"] == "length"
    assert attempt["prefill"]["worker"] == "p1" and attempt["prefill"]["fallbacks"] == ["p0"]
    assert attempt["decode"]["worker"] == "d0"
    assert attempt["state_at"] == {"worker": "d0", "tokens": 16}
    states = {each["worker"]: each["state_tokens"] for each in attempt["prefill"]["candidates"]}
    assert states == {"p0": 0, "p1": 16}
    costs = {each["worker"]: each["parts"] for each in attempt["prefill"]["candidates"]}
    assert costs == {"p0": {"queue": 0, "cached": 0}, "p1": {"queue": 0, "cached": -1024}}
    assert "least to compute" in attempt["prefill"]["reason"]
    assert "the deepest state" in attempt["decode"]["reason"]
    assert attempt["prefill_here"]["chosen"] is False
    text = "\n".join(lines)
    for said in (
        "p1 had the state after 16 tokens (8 of them from its host's memory), and the KV of 16 "
        "more: no use without a state there; it computed 24 tokens",
        "state after 16 tokens from d0: it came, 2.5 ms",
        "the KV of 32 tokens; the rank had the KV of 8",
        "failed    p0 was lost",
        "p0 had the state after 32 tokens: evicted",
        "* p1",
        "= queue 0 + cached -1024",
    ):
        assert said in text, text


async def test_every_protocol_gives_the_explanation_that_is_asked_for(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, _, http):
        whole = await ask(http, [10, 11], explain=True, n=2)
        assert len(whole["explanations"]) == 2
        first = whole["explanations"][0]
        assert f"cmpl-{first['request_id']}" == whole["id"]
        later = await explained(http, whole["id"])
        assert later.pop("same_name") == [] and later.pop("age_s") >= 0 and later == first
        assert "explanations" not in await ask(http, [10, 11])

        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "explain": True}
        said = (await http.post("/v1/chat/completions", json=chat)).json()
        assert f"chatcmpl-{said['explanations'][0]['request_id']}" == said["id"]
        for options in ({}, {"stream_options": {"include_usage": True}}):
            body = {"prompt": [10, 11], "stream": True, "explain": True, **options}
            streamed = (await http.post("/v1/completions", json=body)).text
            events = [
                json.loads(line[6:]) for line in streamed.splitlines() if line[:7] == "data: {"
            ]
            assert ["explanations" in each for each in events] == [False] * (len(events) - 1) + [
                True
            ]
            assert ("timings" in events[-1]) is bool(options) and events[-1]["choices"] == []
            assert events[-1]["explanations"][0]["attempts"][0]["decode"]["worker"] in ("d0", "d1")

        native = {"input_ids": [10, 11], "explain": True}
        meta = (await http.post("/generate", json=native)).json()["meta_info"]
        assert meta["explanation"]["computed"]["by"] == "p1"

        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=[10, 11]), stream=True, explain=True
        )
        *before, last = await replies_of(cluster.inference.Generate(request, timeout=DEADLINE_S))
        assert not any(reply.explanation for reply in before)
        assert json.loads(last.explanation)["request_id"] == last.request_id


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}),
    ],
)
async def test_what_gives_no_explanation_refuses_to_be_asked(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with served(tmp_path) as (_, _, http):
        refused = await http.post(path, json=body | {"explain": True})
        assert refused.status_code == 400 and "explain" in refused.text
        assert (await http.post(path, json=body | {"explain": False})).status_code == 200


async def test_each_attempt_is_told_with_its_end(tmp_path: Path, rng: random.Random) -> None:
    prompt = random_ids(rng, 8)
    async with Cluster(tmp_path) as cluster:
        first, other = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first)
        call = cluster.generate(prompt, max_tokens=3)
        start = await within(first.starts.get())
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            running = await explained(http, start.request_id)
            assert running["status"] == "running" and running["outcome"] is None
            assert running["attempts"][0]["end"] == "running"
            await cluster.add(other)
            first.hang_up()
            again = await within(other.starts.get())
            other.send(tokens_of(again, [20, 21, 22], last=True))
            await within(replies_of(call))
            found = await explained(http, start.request_id)
    ends = [(each["attempt"], each["end"], each["decode"]["worker"]) for each in found["attempts"]]
    assert ends == [(1, "lost", "d0"), (2, "length", "d1")]
    assert "d0 was lost" in found["attempts"][0]["why"]
    assert found["attempts"][0]["ended_ms"] <= found["attempts"][1]["placed_ms"]


async def test_one_that_waits_is_told_as_waiting(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(rank)  # and no prefill worker
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            body = {"prompt": [10, 11], "max_tokens": 1, "rid": "waits"}
            asked = asyncio.create_task(http.post("/v1/completions", json=body))
            await cluster.until_active(1)
            found = await explained(http, "waits")
            assert (found["status"], found["attempts"]) == ("waiting", [])
            assert found["computed"] is None and found["timings"] is None
            assert "waiting" in next(explanation_lines(found, None))
            await cluster.add(FakeWorker("p0"))
            rank.send(tokens_of(await within(rank.starts.get()), [20], last=True))
            assert (await within(asked)).status_code == 200
            assert (await explained(http, "waits"))["attempts"][0]["placed_ms"] > 0


async def test_what_the_reader_loses_before_it_reads_is_told(
    tmp_path: Path, rng: random.Random
) -> None:
    prompt = random_ids(rng, 20)
    made = [digest(prompt[:16])]
    async with Cluster(tmp_path) as cluster:
        reader, rank = FakeWorker("p0"), FakeRank("d0")
        await cluster.add(reader, rank)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            reader.report(cache=CacheReport(sequence=1, whole=True, made=made, depths=[16]))
            await known(http, 1)
            call = cluster.generate(prompt, max_tokens=1)
            start = await within(rank.starts.get())
            reader.report(cache=CacheReport(sequence=2, after=1, evicted=made))
            await known(http, 0)
            rank.send(tokens_of(start, [20], last=True))
            await within(replies_of(call))
            (lost,) = (await explained(http, start.request_id))["lost_states"]
    assert (lost["worker"], lost["tokens"], lost["how"]) == ("p0", 16, "evicted")
    assert lost["before_placement_s"] <= 0


async def test_a_key_sees_its_own_requests_alone(tmp_path: Path) -> None:
    texts = {name: f"sk-{name}-0123456789abcdef" for name in ("one", "two", "boss")}
    scopes = {"one": KeyScope.INFER, "two": KeyScope.INFER, "boss": KeyScope.ADMIN}
    file = tmp_path / "keys.json"
    write_keys(
        file,
        [Key(name, digest_of(text), frozenset({scopes[name]})) for name, text in texts.items()]
        + [Key("watch", digest_of("sk-watch-0123456789abcdef"), frozenset({KeyScope.METRICS}))],
    )
    async with Cluster(tmp_path, api_keys=file) as cluster:
        cluster.headers = {"x-api-key": "sk-watch-0123456789abcdef"}
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [20], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            mine = {"x-api-key": texts["one"]}
            body = {"prompt": [10, 11], "max_tokens": 1}
            reply = await http.post("/v1/completions", json=body, headers=mine)
            path = f"/explain/{reply.json()['id']}"
            asked = {
                name: await http.get(path, headers={"x-api-key": text})
                for name, text in texts.items()
            }
            nobody = await http.get("/explain/nobody", headers=mine)
            watcher = await http.get(path, headers=cluster.headers)
            unknown = await http.get(path)
    assert {name: each.status_code for name, each in asked.items()} == {
        "one": 200, "two": 404, "boss": 200,
    }  # fmt: skip
    expected = nobody.json()["error"]["message"].replace("nobody", path.removeprefix("/explain/"))
    assert nobody.status_code == 404 and "256 requests" in expected
    assert asked["two"].json()["error"]["message"] == expected, "as of one that nobody knows"
    assert (watcher.status_code, unknown.status_code) == (403, 401)
