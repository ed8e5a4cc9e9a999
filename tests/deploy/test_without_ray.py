"""A router, a prefill worker and a decode rank in one process: what a client sees of the caches."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import folder_of
from deploy.tiny_worker import DEADLINE_S, GRID, Client, findings, make_worker, prompt, served
from kit.polling import until_answered
from prometheus_client.parser import text_string_to_metric_families

from baton.core.role import Role
from baton.core.supervised import ProcessSupervisor
from baton.router.config import RouterConfig
from baton.router.server import RouterServer

TRANSITIONS = {
    f"baton_worker_{side}_handoff_transitions_total" for side in ("outgoing", "incoming")
}


@dataclass(frozen=True)
class Both:
    """The router's client."""

    client: Client

    async def handoffs_into(self, role: Role, state: str) -> float:
        """Return the number of hand-offs that entered `state` on the worker of that role."""
        page = (await self.client.http.get(f"/workers/{role}-0/metrics")).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name in TRANSITIONS and sample.labels["to"] == state
        )


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Both]:
    """All on free ports; at the end all books balance."""
    router = RouterServer(
        RouterConfig(folder, folder_of("router", "router-0"), prefill_here=0), ProcessSupervisor()
    )
    started = await router.start()
    try:
        routers = (started.internal_address,)
        url = f"http://{started.http_address}"
        async with (
            make_worker(folder, Role.PREFILL, routers) as prefill,
            make_worker(folder, Role.DECODE, routers) as decode,
            httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
        ):
            client = Client(http, started.grpc_address)
            await client.ready()
            yield Both(client)
            assert not await findings(prefill)
            assert not await findings(decode)
    finally:
        await router.stop(0.0)


async def test_hits_of_the_prefill_worker_are_seen_by_the_client_until_a_flush(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 5 * GRID + 3)
    async with served(tiny) as alone:
        expected = (await alone.generate(ids, 40))["output_ids"]
    async with cluster(tiny) as both:
        client = both.client
        cold = await client.generate(ids, 40)
        warm = await client.generate(ids, 40)
        assert cold["output_ids"] == warm["output_ids"] == expected
        assert cold["meta_info"]["cached_tokens"] == 0
        assert warm["meta_info"]["cached_tokens"] == 5 * GRID
        assert warm["meta_info"]["prompt_tokens"] == len(ids)
        body = {"prompt": ids, "max_tokens": 1}
        usage = (await client.http.post("/v1/completions", json=body)).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 5 * GRID
        flushed = await client.http.post("/flush_cache", params={"timeout": 10})
        assert flushed.status_code == 200, flushed.text
        assert (await client.generate(ids, 40))["meta_info"]["cached_tokens"] == 0


async def test_scores_come_from_the_prefill_worker_and_take_no_ticket(
    tiny: Path, rng: random.Random
) -> None:
    ids = prompt(rng, 3 * GRID + 5)
    scoring: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 2}
    async with served(tiny) as alone:
        expected = await alone.generate(ids, 0, **scoring)
    async with cluster(tiny) as both:
        scored = await both.client.generate(ids, 0, **scoring)
        assert await both.handoffs_into(Role.DECODE, "reserved") == 0
        written = await both.client.generate(ids, 4, **scoring)
        assert await both.handoffs_into(Role.DECODE, "reserved") == 1
    for reply in (scored, written):
        entries = reply["meta_info"]["input_token_logprobs"]
        assert [entry[1] for entry in entries] == ids[2:]
        assert [entry[0] for entry in entries] == pytest.approx(
            [entry[0] for entry in expected["meta_info"]["input_token_logprobs"]], abs=1e-4
        )
    assert scored["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert len(written["meta_info"]["output_token_logprobs"]) == 4


async def test_a_flush_waits_for_the_rank_that_decodes(tiny: Path, rng: random.Random) -> None:
    async with cluster(tiny) as both:
        client = both.client
        running = asyncio.create_task(client.generate(prompt(rng, 9), 3000, rid="long"))
        await until_answered(lambda: both.handoffs_into(Role.DECODE, "active"))
        busy = await client.http.post("/flush_cache", params={"timeout": 0})
        assert busy.status_code == 504
        assert "decode-0 is still at work" in busy.json()["error"]["message"]
        await client.http.post("/abort_request", json={"rid": "long"})
        assert (await running)["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await client.http.post("/flush_cache")).status_code == 200


async def test_options_of_the_ranks_reach_the_client(tiny: Path) -> None:
    async with cluster(tiny) as both:
        info = (await both.client.http.get("/get_server_info")).json()
    assert info["disable_radix_cache"] is info["disable_overlap_schedule"] is False
    assert (info["page_size"], info["max_running_requests"]) == (GRID, 4)
    assert info["mamba_scheduler_strategy"] == "extra_buffer"
    assert info["internal_states"][0]["worker_id"] == "decode-0"
