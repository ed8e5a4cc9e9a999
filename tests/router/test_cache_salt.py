"""Cache salts at a real router: from the client's field or the API key to the rank."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from prometheus_client import CollectorRegistry
from router.test_generate import failure
from router_neighbours import Cluster, random_ids, replies_of

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.api.client_salt import MAX_SALT_CHARS
from baton.core.cache_salt import SALT_BYTES, SHARED, CacheScope, make_salt
from baton.core.errors import ConfigError
from baton.core.finish import Usage
from baton.proto import common_pb2
from baton.proto.inference_pb2 import GenerateRequest, TokenIds
from baton.proto.worker_pb2 import RequestTokens, StartRequest
from baton.router.config import RouterConfig
from baton.router.key_metrics import OTHERS, KeyMetrics

SECRET = "only ada knows this salt"
TEXTS = {name: new_key() for name in ("ada", "bob", "watcher")}
CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def rng() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@asynccontextmanager
async def served(
    folder: Path, scope: CacheScope | None = None
) -> AsyncIterator[tuple[Cluster, FakeRank, httpx.AsyncClient]]:
    """A router with one rank that ends every answer at once. scope: None: without API keys."""
    options: dict[str, Any] = {}
    if scope is not None:
        file = folder / "keys.json"
        users = frozenset({KeyScope.INFER})
        watcher = frozenset({KeyScope.METRICS})
        write_keys(
            file,
            [
                Key(name, digest_of(text), watcher if name == "watcher" else users)
                for name, text in TEXTS.items()
            ],
        )
        options = {"api_keys": file, "cache_scope": scope}
    async with Cluster(folder, **options) as cluster:
        cluster.headers = headers("watcher")
        rank = FakeRank("d0", answer=lambda start: [tokens_of(start, [20], last=True)])
        await cluster.add(FakeWorker("p0"), rank)
        async with httpx.AsyncClient(base_url=cluster.http, timeout=DEADLINE_S) as http:
            yield cluster, rank, http


def headers(name: str) -> dict[str, str]:
    return {"x-api-key": TEXTS[name]}


def salts_of(rank: FakeRank) -> list[bytes]:
    """Return the salts that the rank was given since it was last asked, in order."""
    return [rank.starts.get_nowait().cache_salt for _ in range(rank.starts.qsize())]


async def test_every_protocol_gives_the_rank_the_same_digest(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, rank, http):
        for path, body in (
            ("/v1/completions", {"prompt": [11, 12], "cache_salt": SECRET, "n": 2}),
            ("/v1/chat/completions", CHAT | {"cache_salt": SECRET}),
            ("/v1/chat/completions", CHAT | {"extra_key": SECRET}),
            ("/generate", {"input_ids": [11], "extra_key": SECRET}),
            ("/generate", {"text": ["a", "b"], "extra_key": [SECRET, SECRET]}),
            ("/generate", {"input_ids": [11], "cache_salt": SECRET}),
        ):
            reply = await http.post(path, json=body)
            assert reply.status_code == 200, reply.text
        message = GenerateRequest(token_ids=TokenIds(ids=[11]), cache_salt=SECRET)
        await within(replies_of(cluster.inference.Generate(message, timeout=DEADLINE_S)))
        salts = salts_of(rank)
        assert len(salts) == 9 and set(salts) == {make_salt(SECRET)}
        assert len(salts[0]) == SALT_BYTES and SECRET.encode() not in salts[0]


async def test_each_prompt_may_have_its_own_and_two_fields_make_a_third(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, rank, http):
        body = {"text": ["a", "b"], "extra_key": ["x", "y"], "cache_salt": "s"}
        assert (await http.post("/generate", json=body)).status_code == 200
        for more in ({"cache_salt": "sx"}, {"cache_salt": "s"}, {"cache_salt": None}, {}):
            assert (await http.post("/v1/chat/completions", json=CHAT | more)).status_code == 200
        salts = salts_of(rank)
        assert salts[-2:] == [SHARED, SHARED], "with no salt all share, as ever"
        assert len(set(salts[:4])) == 4


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
async def test_a_salt_that_is_none_is_refused_and_not_repeated(
    tmp_path: Path, path: str, field: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": [11]},
        "/v1/chat/completions": CHAT,
        "/generate": {"input_ids": [11]},
    }
    async with served(tmp_path) as (_, rank, http):
        for wrong in ("", SECRET * MAX_SALT_CHARS, 7):
            reply = await http.post(path, json=bodies[path] | {field: wrong})
            assert reply.status_code == 400, reply.text
            assert reply.json()["error"]["param"] == field
            assert SECRET not in reply.text
        assert not salts_of(rank)


async def test_a_salt_that_is_none_is_refused_over_grpc(tmp_path: Path) -> None:
    async with served(tmp_path) as (cluster, _, _):
        message = GenerateRequest(token_ids=TokenIds(ids=[11]), cache_salt="")
        call = cluster.inference.Generate(message, timeout=DEADLINE_S)
        error = await failure(call)
        assert error.code == common_pb2.INVALID_REQUEST and "0 characters" in error.message


async def test_one_list_of_salts_must_fit_the_prompts(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _, http):
        body = {"text": ["a", "b"], "extra_key": [SECRET]}
        reply = await http.post("/generate", json=body)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "extra_key"
        assert SECRET not in reply.text


async def test_a_state_is_named_to_its_own_salt_alone(tmp_path: Path, rng: random.Random) -> None:
    prompt, answer, more = (random_ids(rng, n) for n in (10, 12, 5))
    async with Cluster(tmp_path) as cluster:
        rank = FakeRank("d0")
        await cluster.add(FakeWorker("p0"), rank)

        async def ask(ids: list[int], salt: str | None, state_tokens: int) -> StartRequest:
            message = GenerateRequest(token_ids=TokenIds(ids=ids), cache_salt=salt)
            call = cluster.inference.Generate(message, timeout=DEADLINE_S)
            start = await within(rank.starts.get())
            done = tokens_of(start, answer, last=True)
            done.finished.state_tokens = state_tokens
            rank.send(done)
            await within(replies_of(call))
            return start

        await ask(prompt, "ada", 16)
        turn = [*prompt, *answer, *more]
        for other in ("bob", None):
            assert not (await ask(turn, other, 0)).HasField("state_at")
        start = await ask(turn, "ada", 0)
        assert (start.state_at.worker, start.state_at.tokens) == (rank.identity, 16)


async def test_the_next_attempt_keeps_the_salt(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first, second = FakeRank("d0"), FakeRank("d1")
        await cluster.add(FakeWorker("p0"), first, second)
        message = GenerateRequest(token_ids=TokenIds(ids=[11, 12]), cache_salt=SECRET)
        call = cluster.inference.Generate(message, timeout=DEADLINE_S)
        start = await within(first.starts.get())
        assert start.cache_salt == make_salt(SECRET)
        error = common_pb2.Error(code=common_pb2.UNAVAILABLE, retryable=True, origin="d0")
        done = common_pb2.Finished(reason=common_pb2.ERROR, error=error)
        first.send(RequestTokens(request_id=start.request_id, attempt=start.attempt, finished=done))
        again = await within(second.starts.get())
        assert again.attempt == 2 and again.cache_salt == start.cache_salt
        second.send(tokens_of(again, [20], last=True))
        await within(replies_of(call))


async def test_with_the_scope_key_each_key_has_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, CacheScope.KEY) as (cluster, rank, http):
        for name, body in (
            ("ada", {"prompt": [11]}),
            ("ada", {"prompt": [12]}),
            ("bob", {"prompt": [11]}),
            ("ada", {"prompt": [11], "cache_salt": "s"}),
            ("bob", {"prompt": [11], "cache_salt": "s"}),
        ):
            reply = await http.post("/v1/completions", json=body, headers=headers(name))
            assert reply.status_code == 200, reply.text
        message = GenerateRequest(token_ids=TokenIds(ids=[11]))
        metadata = tuple(headers("ada").items())
        call = cluster.inference.Generate(message, timeout=DEADLINE_S, metadata=metadata)
        await within(replies_of(call))
        ada, same, bob, salted, others, by_grpc = salts_of(rank)
        assert ada == same == by_grpc
        assert len({SHARED, ada, bob, salted, others}) == 5


async def test_with_the_scope_shared_keys_share_and_so_do_those_who_know_a_salt(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, CacheScope.SHARED) as (_, rank, http):
        for name in ("ada", "bob"):
            for body in ({"prompt": [11]}, {"prompt": [11], "cache_salt": "s"}):
                reply = await http.post("/v1/completions", json=body, headers=headers(name))
                assert reply.status_code == 200
        assert salts_of(rank) == [SHARED, make_salt("s")] * 2


async def test_names_of_keys_are_in_the_metrics_and_salts_are_nowhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with served(tmp_path, CacheScope.KEY) as (_, rank, http):
        for name, count in (("ada", 2), ("bob", 1)):
            for _ in range(count):
                body = {"prompt": [11, 12, 13], "cache_salt": SECRET}
                await http.post("/v1/completions", json=body, headers=headers(name))
        refused = await http.get("/metrics", headers=headers("ada"))
        assert refused.status_code == 403 and "bob" not in refused.text
        page = (await http.get("/metrics", headers=headers("watcher"))).text
        info = (await http.get("/server_info", headers=headers("watcher"))).text
        for line in (
            'baton_router_key_requests_total{key="ada",outcome="length"} 2.0',
            'baton_router_key_requests_total{key="bob",outcome="length"} 1.0',
            'baton_router_key_tokens_total{key="ada",kind="prompt"} 6.0',
            'baton_router_key_tokens_total{key="bob",kind="output"} 1.0',
            'baton_router_key_cached_tokens_total{key="bob"} 0.0',
        ):
            assert line in page, page
        salts = salts_of(rank)
        assert len(set(salts)) == 2
        told = page + info + caplog.text
        for salt in (*salts, make_salt(SECRET)):
            assert SECRET not in told and salt.hex() not in told and repr(salt) not in told


async def test_without_keys_there_are_no_names(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _, http):
        await http.post("/v1/completions", json={"prompt": [11]})
        page = (await http.get("/metrics")).text
        assert 'key="' not in page


def test_keys_beyond_the_bound_are_counted_together() -> None:
    registry = CollectorRegistry()
    metrics = KeyMetrics(registry, max_keys=2)
    for name in ("ada", "bob", "eve", "ada", "joe"):
        metrics.ended(name, "stop")
        metrics.finished(name, Usage(3, 2, 1))

    def value(metric: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"baton_router_key_{metric}_total", labels)

    assert value("requests", key="ada", outcome="stop") == 2
    assert value("requests", key=OTHERS, outcome="stop") == 2
    assert value("requests", key="eve", outcome="stop") is None
    assert value("tokens", key=OTHERS, kind="prompt") == 6
    assert value("cached_tokens", key="bob") == 1


def test_the_scope_key_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cache_scope is key"):
        RouterConfig(tmp_path, tmp_path, cache_scope=CacheScope.KEY)
