"""Two tenants at a whole cluster in this process: real router, workers, HTTP and gRPC."""

import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import folder_of
from deploy.tiny_worker import DEADLINE_S, GRID, Client, findings, make_worker, prompt
from engine.file_tiers import file_options, paths_in
from kit.polling import until_answered
from prometheus_client.parser import text_string_to_metric_families

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.core.cache_salt import SHARED, CacheScope, key_salt
from baton.core.role import ROUTED_ROLES
from baton.core.supervised import ProcessSupervisor
from baton.router.config import RouterConfig
from baton.router.server import RouterServer
from baton.standalone.config import StandaloneConfig
from baton.worker.config import StateReturn

TEXTS = {name: new_key() for name in ("ada", "bob")}
OPERATOR = new_key()


class Tenants:
    """A cluster that asks for keys, and its clients."""

    def __init__(self, http: httpx.AsyncClient, workers: list[str]) -> None:
        """workers: their ids."""
        self._http = http
        self._workers = workers

    async def ask(self, name: str, ids: list[int], new: int = 4, **body: Any) -> dict[str, Any]:
        """Return a tenant's answer: its tokens, and the tokens that it hit."""
        greedy = {"temperature": 0, "max_tokens": new, "ignore_eos": True}
        reply = await self._http.post(
            "/v1/completions",
            json={"prompt": ids, "return_token_ids": True} | greedy | body,
            headers={"x-api-key": TEXTS[name]},
        )
        assert reply.status_code == 200, reply.text
        answer = reply.json()
        details = answer["usage"]["prompt_tokens_details"]
        return {
            "ids": answer["choices"][0]["token_ids"],
            "cached": details["cached_tokens"] if details else 0,
        }

    async def counted(self, name: str, **labels: str) -> float:
        """Return the sum of a counter over the processes, of the samples with these labels."""
        total = 0.0
        for url in ("/metrics", *(f"/workers/{each}/metrics" for each in self._workers)):
            page = (await self._http.get(url, headers={"x-api-key": TEXTS["ada"]})).text
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        total += sample.value
        return total

    async def flush(self, text: str, **part: str) -> int:
        """Ask for a flush with the key `text`; return the status."""
        reply = await self._http.post("/flush_cache", json=part, headers={"x-api-key": text})
        return reply.status_code

    async def hits(self) -> Mapping[str, float]:
        """Return all that counts as a hit, or as news of a cached prefix, anywhere."""
        return {
            name: await self.counted(name)
            for name in (
                "baton_router_cached_tokens_total",
                "baton_router_state_hits_total",
                "baton_worker_prefix_fetches_total",
                "baton_engine_state_hit_tokens_total",
                "baton_engine_kv_hit_tokens_total",
                "baton_engine_transfer_hit_tokens_total",
            )
        }


def keys_in(folder: Path) -> Path:
    """Write the tenants' keys to a file, and return it."""
    file = folder / "keys.json"
    scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
    keys = [Key(name, digest_of(text), scopes) for name, text in TEXTS.items()]
    write_keys(file, [*keys, Key("operator", digest_of(OPERATOR), frozenset({KeyScope.ADMIN}))])
    return file


@asynccontextmanager
async def tenants(model: Path, folder: Path, scope: CacheScope) -> AsyncIterator[Tenants]:
    file = keys_in(folder)
    credentials = folder_of("router", "router-0")
    router = RouterServer(
        RouterConfig(model, credentials, api_keys=file, cache_scope=scope), ProcessSupervisor()
    )
    started = await router.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(router.stop, 0.0)
        routers = (started.internal_address,)
        workers = [
            await stack.enter_async_context(
                make_worker(
                    model,
                    role,
                    routers,
                    state_return=StateReturn.DEMAND,
                    mamba_track_interval=GRID,
                )
            )
            for role in ROUTED_ROLES
        ]
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{started.http_address}", timeout=DEADLINE_S)
        )
        await Client(http, "").ready()
        yield Tenants(http, [f"{role}-0" for role in ROUTED_ROLES])
        for worker in workers:
            assert not await findings(worker)


async def test_what_one_key_has_cached_no_other_key_hits(
    tiny: Path, tmp_path: Path, rng: random.Random, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither prompt nor answer; no worker or router takes note of a hit, or logs a salt."""
    caplog.set_level(logging.DEBUG)
    ids = prompt(rng, 5 * GRID + 3)
    async with tenants(tiny, tmp_path, CacheScope.KEY) as cluster:
        first = await cluster.ask("ada", ids, 40)
        turn = [*ids, *first["ids"], *prompt(rng, 5)]
        before = await cluster.hits()
        assert not any(before.values())
        other = await cluster.ask("bob", turn)
        assert other["cached"] == 0
        assert await cluster.hits() == before
        second = await cluster.ask("ada", turn)
        assert second["cached"] > 5 * GRID, "her own answer's state came back"
        assert second["ids"] == other["ids"]
        assert await cluster.counted("baton_router_key_requests_total", key="ada") == 2
        assert (
            await cluster.counted("baton_router_key_cached_tokens_total", key="ada")
            == (second["cached"])
        )
    assert caplog.text and "cache_salt" not in caplog.text
    for salt in (key_salt(name, SHARED) for name in TEXTS):
        assert salt.hex() not in caplog.text and repr(salt) not in caplog.text


@pytest.mark.parametrize("scope", list(CacheScope))
async def test_a_salt_divides_what_is_shared(
    tiny: Path, tmp_path: Path, rng: random.Random, scope: CacheScope
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    apart = scope is CacheScope.KEY
    async with tenants(tiny, tmp_path, scope) as cluster:
        asked: list[tuple[str, dict[str, Any]]] = [
            ("ada", {}),
            ("bob", {}),
            ("ada", {"cache_salt": "s"}),
            ("ada", {"extra_key": "s"}),
            ("bob", {"cache_salt": "s"}),
            ("bob", {"cache_salt": "t"}),
        ]
        cached = [(await cluster.ask(name, ids, **body))["cached"] for name, body in asked]
        hit = 5 * GRID
        assert cached == [0, 0 if apart else hit, 0, hit, 0 if apart else hit, 0]


async def test_a_lone_worker_keeps_its_keys_apart_too(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    clients = StandaloneConfig(api_keys=keys_in(tmp_path), cache_scope=CacheScope.KEY)
    async with (
        make_worker(tiny, clients=clients) as worker,
        httpx.AsyncClient(base_url=f"http://{worker.addresses.http}", timeout=DEADLINE_S) as http,
    ):
        lone = Tenants(http, [])
        cached = [(await lone.ask(name, ids))["cached"] for name in ("ada", "bob", "ada")]
        assert cached == [0, 0, 5 * GRID]


async def test_an_operator_removes_what_one_key_has_left_in_a_cluster(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    async with tenants(tiny, tmp_path, CacheScope.KEY) as cluster:
        for name, body in (("ada", {}), ("ada", {"cache_salt": "s"}), ("bob", {})):
            assert (await cluster.ask(name, ids, 40, **body))["cached"] == 0
        assert await cluster.flush(TEXTS["ada"], api_key="ada") == 403
        assert (await cluster.ask("ada", ids, 40))["cached"] == 5 * GRID
        assert await cluster.flush(OPERATOR, api_key="ada") == 200
        assert (await cluster.ask("ada", ids))["cached"] == 0
        assert (await cluster.ask("ada", ids, cache_salt="s"))["cached"] == 0
        assert (await cluster.ask("bob", ids))["cached"] == 5 * GRID


async def test_an_operator_removes_what_one_salt_of_a_key_has_left_in_files(
    tiny: Path, tmp_path: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    clients = StandaloneConfig(api_keys=keys_in(tmp_path), cache_scope=CacheScope.KEY)
    async with (
        make_worker(tiny, clients=clients, **file_options(tmp_path)) as worker,
        httpx.AsyncClient(base_url=f"http://{worker.addresses.http}", timeout=DEADLINE_S) as http,
    ):
        lone = Tenants(http, [])
        asked: list[tuple[str, dict[str, Any]]] = [
            ("ada", {}), ("ada", {"cache_salt": "s"}), ("bob", {"cache_salt": "s"})
        ]  # fmt: skip
        for name, body in asked:
            assert (await lone.ask(name, ids, **body))["cached"] == 0

        async def all_are_written() -> bool:
            return len(paths_in(tmp_path)) == len(asked)

        await until_answered(all_are_written)
        assert await lone.flush(OPERATOR, cache_salt="s") == 400, "of which key?"
        assert await lone.flush(OPERATOR, api_key="ada", cache_salt="s") == 200
        assert len(paths_in(tmp_path)) == 2
        cached = [(await lone.ask(name, ids, **body))["cached"] for name, body in asked]
        assert cached == [5 * GRID, 0, 5 * GRID]
        assert not await findings(worker)
