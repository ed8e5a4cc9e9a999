"""More requests at once than a cluster and its queue hold.

`tests/chaos/test_overload.py` measures how much it still does.
"""

import asyncio
import random

import httpx
import pytest
from e2e.clients import DEADLINE_S, http_greedy, prompts_of

from baton.deploy.cluster.cluster import Cluster

pytestmark = pytest.mark.cluster

REQUESTS, TOKENS = 600, 60


async def test_what_is_admitted_is_right_and_what_is_not_says_when_to_come_again(
    cluster: Cluster, rng: random.Random
) -> None:
    prompts = prompts_of(rng, [9, 40, 70])
    expected = await http_greedy(cluster, prompts, TOKENS)
    limits = httpx.Limits(max_connections=None)
    greedy = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with httpx.AsyncClient(
        base_url=cluster.http_url, timeout=DEADLINE_S, limits=limits
    ) as client:
        asked = [
            client.post("/v1/completions", json=greedy | {"prompt": prompts[i % len(prompts)]})
            for i in range(REQUESTS)
        ]
        replies = await asyncio.gather(*asked)
        refused = [reply for reply in replies if reply.status_code == 429]
        for i, reply in enumerate(replies):
            if reply.status_code == 200:
                assert reply.json()["choices"][0]["token_ids"] == expected[i % len(prompts)]
        assert refused and len(refused) < REQUESTS
        assert {reply.status_code for reply in replies} == {200, 429}
        for reply in refused:
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["code"] == "overloaded"
        info = (await client.get("/server_info")).json()["router"]
        assert (info["waiting"], info["waiting_tokens"], info["active"]) == (0, 0, 0)
    assert await http_greedy(cluster, prompts, TOKENS) == expected
