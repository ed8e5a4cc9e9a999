"""A worker that answers by itself and keeps copies of prefixes in its host's memory."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from deploy.tiny_worker import DEADLINE_S, GRID, Client, findings, make_worker, prompt
from engine.host_tiers import MIB, forget_device, tier_of
from kit.polling import LOOK_S

from baton.engine.handoff.fetch_cost import FetchCost


async def test_its_replies_metrics_and_flushes_know_of_the_host(
    tiny: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FetchCost, "sooner", lambda *_: True)
    ids = prompt(rng, 5 * GRID + 3)
    sizes: dict[str, Any] = {"host_cache_bytes": MIB, "host_cache_state_bytes": MIB}
    async with make_worker(tiny, **sizes) as worker:
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
