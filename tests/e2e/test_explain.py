"""Explanations through the whole cluster: what workers say that they had is what they had."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest
from e2e.clients import DEADLINE_S, prompts_of
from kit.polling import until_asked

from baton.bench.cluster.stream_client import exchange
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.errors import NotRunning
from baton.deploy.terminal.explanation_text import explanation_lines

pytestmark = pytest.mark.cluster

PAGE = 16  # as in conftest
READER = "prefill-0"  # the only one; its ranks compute no prompts


async def test_hits_misses_and_a_flush_are_told_as_they_were(
    cluster: Cluster, rng: random.Random
) -> None:
    grid = await _grid(cluster)
    prompt, tail = prompts_of(rng, [3 * grid + 8, 8])
    await asyncio.to_thread(cluster.router.flush_cache)
    first = (await _ask(cluster, prompt, "first"))["computed"]
    assert (first["cached_state_tokens"], first["cached_kv_tokens"]) == (0, 0)
    assert first["computed_tokens"] == first["sent_kv_tokens"] == len(prompt)
    await _until_known(cluster)
    again = await _ask(cluster, [*prompt, *tail], "again")
    assert again["computed"]["cached_state_tokens"] >= 3 * grid
    assert again["lost_states"] == []
    # This one leaves the first between two states: the KV up to there is cached, and no use.
    shared = 2 * grid + PAGE
    branch = (await _ask(cluster, [*prompt[:shared], *tail], "branch"))["computed"]
    assert branch["cached_state_tokens"] < branch["cached_kv_tokens"] == shared
    await asyncio.to_thread(cluster.router.flush_cache)
    flushed = await _ask(cluster, prompt, "flushed")
    assert flushed["computed"]["cached_kv_tokens"] == 0
    lost = {each["worker"]: each for each in flushed["lost_states"]}
    assert (lost[READER]["tokens"], lost[READER]["how"]) == (3 * grid, "flushed")
    said = "\n".join(explanation_lines(flushed, 1))
    assert f"{READER} had the state after {3 * grid} tokens: flushed" in said
    with pytest.raises(NotRunning, match="answers 404: no request 'nobody' is known here"):
        await asyncio.to_thread(cluster.router.explain, "nobody")


async def _grid(cluster: Cluster) -> int:
    """Return the tokens between the depths at which states are kept."""
    workers = (await asyncio.to_thread(cluster.router.server_info))["workers"]
    (reader,) = (worker for worker in workers if worker["worker_id"] == READER)
    return int(reader["settings"]["mamba_checkpoint_grid"])


async def _ask(cluster: Cluster, prompt: list[int], name: str) -> Mapping[str, Any]:
    """Send a request and return its explanation, which must agree with its reply."""
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "rid": name}  # fmt: skip
    answer = (await exchange(cluster.address, body, DEADLINE_S)).answer()
    found = await asyncio.to_thread(cluster.router.explain, name)
    computed = found["computed"]
    assert computed["by"] == READER and computed["failed"] == []
    assert computed["cached_state_tokens"] == answer.cached_tokens
    assert computed["computed_tokens"] == len(prompt) - answer.cached_tokens
    assert computed["rank_kv_tokens"] + computed["sent_kv_tokens"] == len(prompt)
    assert (found["prompt_tokens"], found["output_tokens"]) == (len(prompt), 4)
    return found


async def _until_known(cluster: Cluster) -> None:
    """Wait until the router knows of a state."""
    await until_asked(lambda: cluster.router.server_info()["router"]["cached_prefixes"])
