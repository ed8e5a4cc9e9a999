"""A worker that answers by itself and keeps copies of prefixes in its host's memory and files."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from deploy.tiny_worker import DEADLINE_S, GRID, Client, findings, make_worker, prompt
from engine.file_tiers import file_options, paths_in
from engine.host_tiers import MIB, copies_wait, forget_device, tier_of
from kit.polling import LOOK_S, until_answered

from baton.engine.handoff.fetch_cost import FetchCost
from baton.engine.tiers.prefix_file import DRAFT
from baton.standalone.config import StandaloneConfig

SIZES: dict[str, Any] = {"host_cache_bytes": MIB, "host_cache_state_bytes": MIB}


async def test_its_replies_metrics_and_flushes_know_of_the_host(
    tiny: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)
    ids = prompt(rng, 5 * GRID + 3)
    async with make_worker(tiny, **SIZES) as worker:
        url, port = f"http://{worker.addresses.http}", worker._context.port
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            client = Client(http, worker.addresses.grpc)
            cold = await client.generate(ids)
            async with asyncio.timeout(DEADLINE_S):
                while await port.call(lambda engine: tier_of(engine).saving):
                    await asyncio.sleep(LOOK_S)
            await port.call(forget_device)
            back = await client.generate(ids)
            assert back["output_ids"] == cold["output_ids"]
            details = {"device": 0, "host": 5 * GRID}
            assert back["meta_info"]["cached_tokens_details"] == details
            body = {"prompt": ids, "max_tokens": 1, "return_cached_tokens_details": True}
            reply = (await http.post("/v1/completions", json=body)).json()
            details = {"device": 5 * GRID, "host": 0}
            assert reply["sglext"]["cached_tokens_details"] == details
            state = await client.state()
            assert state["host_slots"]["cache"] and state["host_pages"]["cache"] >= 5
            page = (await http.get("/metrics")).text
            assert 'baton_worker_host_copies{kind="save"' in page
            assert (await http.post("/flush_cache", params={"timeout": 5})).status_code == 200
            state = await client.state()
            assert state["host_slots"]["cache"] == state["host_pages"]["cache"] == 0
            assert (await client.generate(ids))["meta_info"]["cached_tokens"] == 0
            assert not await findings(worker)


def refuses(*_: object, **__: object) -> None:
    raise PermissionError("the folder is somebody else's")


async def test_its_metrics_state_and_flushes_know_of_files(
    tiny: Path, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    async with make_worker(tiny, **file_options(tmp_path)) as worker:
        url, port = f"http://{worker.addresses.http}", worker._context.port
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            client = Client(http, worker.addresses.grpc)
            await client.generate(ids)
            async with asyncio.timeout(DEADLINE_S):
                while not (await port.call(lambda engine: engine.counters.files_written)):
                    await asyncio.sleep(LOOK_S)
            found = (await client.state())["files"]
            stored = paths_in(tmp_path)
            assert found["files"] == len(stored) == 1 and found["budget"] == 16 * MIB
            assert found["nbytes"] == stored[0].stat().st_size
            assert not found["writing"] and not found["reading"]

            async def told() -> bool:
                page = (await http.get("/metrics")).text.splitlines()
                held = [line for line in page if line.startswith("baton_worker_file_bytes{")]
                return bool(held) and float(held[0].split()[-1]) == found["nbytes"]

            await until_answered(told)
            with monkeypatch.context() as patch:
                patch.setattr(Path, "unlink", refuses)
                kept = await http.post("/flush_cache", params={"timeout": 5})
            assert kept.status_code == 500 and "the folder is somebody else's" in kept.text
            assert (await http.post("/flush_cache", params={"timeout": 5})).status_code == 200
            assert not stored[0].exists()
            assert (await client.state())["files"]["files"] == 0
            assert not await findings(worker)


async def test_what_the_last_request_has_left_is_written_before_it_stops(
    tiny: Path, rng: random.Random, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = copies_wait(monkeypatch)
    clients = StandaloneConfig(drain_s=DEADLINE_S)
    async with make_worker(tiny, clients=clients, **file_options(tmp_path)) as worker:
        url = f"http://{worker.addresses.http}"
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http:
            await Client(http, worker.addresses.grpc).generate(prompt(rng, 5 * GRID + 3))
        assert not paths_in(tmp_path), "it is not even in the host's memory yet"
        asyncio.get_running_loop().call_soon(gate.set)
    (path,) = paths_in(tmp_path)
    assert not path.name.startswith(DRAFT)
