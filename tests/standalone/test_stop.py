"""One engine that stops, and what it counts of requests that ended early."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from deploy.tiny_worker import DEADLINE_S, Client, make_worker, prompt, served
from kit.polling import until_answered
from prometheus_client.parser import text_string_to_metric_families

from baton.standalone.config import StandaloneConfig

LONG = {"max_tokens": 4000, "ignore_eos": True}  # more than any machine does in a second


async def test_a_worker_that_stops_is_not_ready_refuses_and_finishes_what_it_has(
    tiny: Path, rng: random.Random
) -> None:
    worker = make_worker(tiny, clients=StandaloneConfig(drain_s=DEADLINE_S))
    await worker.__aenter__()
    url = f"http://{worker.addresses.http}"
    body = {"prompt": prompt(rng, 5), "stream": True, **LONG}
    async with (
        httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as http,
        asyncio.timeout(DEADLINE_S),
    ):
        assert (await http.get("/ready")).status_code == 200
        async with http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(worker.__aexit__(None, None, None))

            async def refuses() -> bool:
                return (await http.get("/ready")).status_code == 503

            await until_answered(refuses)
            assert (await http.get("/health")).status_code == 200, "it still works"
            messages: dict[str, object] = {"prompt": "x", "messages": []}
            for path, sent in (("/v1/completions", {"prompt": "x"}), ("/v1/messages", messages)):
                refused = await http.post(path, json=sent)
                assert refused.status_code == 503
                assert "the worker is stopping" in refused.json()["error"]["message"]
                assert refused.headers["connection"] == "close"
                assert int(refused.headers["retry-after"]) >= 1
            assert not stopping.done()
            async for line in lines:
                if json.loads(line.removeprefix("data: ") or "{}").get("choices"):
                    break  # it goes on
            await http.post("/abort_request", json={"abort_all": True})
            assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
        await stopping


async def test_requests_that_end_early_are_in_outcomes_and_tokens(
    tiny: Path, rng: random.Random
) -> None:
    body = {"prompt": prompt(rng, 5), "stream": True, "return_token_ids": True, **LONG}
    async with served(tiny) as client, asyncio.timeout(DEADLINE_S):
        seen = await _tokens_before(client, body, lambda: asyncio.sleep(0))  # it leaves
        await client.running(0)
        abort = client.http.post("/abort_request", json={"abort_all": True})
        seen += await _tokens_before(client, body, lambda: abort)
        late = await client.http.post("/v1/completions", json=body | {"timeout": 0.5})
        begun = late.status_code == 200  # a slow machine has no token by then
        assert "within its timeout" in late.text
        refused = await client.http.post("/v1/completions", json=body | {"explain": True})
        assert refused.status_code == 400
        seen += len((await client.generate(prompt(rng, 5)))["output_ids"])
        await client.running(0)
        prompts = 5 * (3 + begun)

        async def counted() -> dict[str, float] | None:
            sums = await _sums(client)
            return sums if sums.get("prompt") == prompts else None

        found = await until_answered(counted)
    assert found.pop("output") >= seen + begun
    assert found == {
        "prompt": prompts,
        "cancelled": 2,
        "deadline_exceeded": 1,
        "invalid_request": 1,
        "length": 1,
    }


async def _tokens_before(
    client: Client, body: dict[str, object], end: Callable[[], Awaitable[object]]
) -> int:
    """Return the tokens of a stream up to its first event with some, and then end it."""
    async with client.http.stream("POST", "/v1/completions", json=body) as reply:
        first = await anext(reply.aiter_lines())
        await end()
    return len(json.loads(first.removeprefix("data: "))["choices"][0]["token_ids"])


async def _sums(client: Client) -> dict[str, float]:
    """Return the answers by outcome, and the tokens by kind."""
    page = (await client.http.get("/metrics")).text
    return {
        sample.labels.get("outcome") or sample.labels["kind"]: sample.value
        for family in text_string_to_metric_families(page)
        if family.name in ("baton_worker_requests", "baton_worker_tokens")
        for sample in family.samples
        if sample.name.endswith("_total")
    }
