"""Profiles and request dumps of a real cluster, and the replay of a dump against it."""

import asyncio
import gzip
import json
import random
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from e2e.clients import http_greedy, prompts_of
from kit.polling import until

from baton.bench.request_replay.replay import replay
from baton.deploy.cluster.cluster import Cluster
from baton.router.dump.block_ids import BLOCK

pytestmark = pytest.mark.cluster

DEADLINE_S = 180.0
N = 12
MARK = 777  # tokens of a prompt as long as no other


async def test_a_profile_of_each_worker_lies_where_the_reply_says(
    cluster: Cluster, rng: random.Random
) -> None:
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=DEADLINE_S) as http:
        started = await http.post("/start_profile", json={"num_steps": 20, "timeout_s": 60})
        assert started.status_code == 200, started.text
        second = await http.post("/start_profile")
        assert second.status_code == 409 and "runs already" in second.text
        await http_greedy(cluster, prompts_of(rng, [40, 41, 42, 43]), N)
        reply = await http.post("/stop_profile")
        assert reply.status_code == 200, reply.text
    made = reply.json()["workers"]
    assert {worker["worker_id"] for worker in made} == set(started.json()["workers"])
    for worker in made:
        events = json.loads(gzip.decompress(Path(worker["file"]).read_bytes()))["traceEvents"]
        steps = [e for e in events if e.get("name", "").startswith("engine step")]
        assert worker["steps"] and len(steps) >= worker["steps"], worker


async def _lines(dump: Path, count: int) -> list[str]:
    """Return the lines of a dump once there are so many: a thread writes them."""
    await until(lambda: len(dump.read_text().splitlines()) >= count)
    return dump.read_text().splitlines()


async def _settled(cluster: Cluster, dump: Path) -> int:
    """Return the number of lines once all earlier requests are among them."""
    await http_greedy(cluster, [[7] * MARK], 1)
    await _lines(dump, 2)
    await until(lambda: json.loads(dump.read_text().splitlines()[-1])["prompt_tokens"] == MARK)
    return len(dump.read_text().splitlines())


async def _replayed(cluster: Cluster, dump: Path, seed: int) -> dict[str, float]:
    words = [str(dump), "--url", cluster.http_url, "--seed", str(seed), "--json"]
    ran = await asyncio.to_thread(CliRunner().invoke, replay, words)
    assert ran.exit_code == 0, ran.output
    results: dict[str, float] = json.loads(ran.output.splitlines()[-1])["results"]
    return results


async def test_a_replay_sends_what_the_dump_has(
    cluster: Cluster, dump_folder: Path, rng: random.Random, tmp_path: Path
) -> None:
    dump = max(dump_folder.iterdir(), key=lambda file: file.stat().st_mtime)
    lengths = [4 * BLOCK + tail for tail in (10, 20, 30)]
    before = await _settled(cluster, dump)
    shared = prompts_of(rng, [4 * BLOCK])[0]
    for tail in prompts_of(rng, [10, 20, 30]):
        await http_greedy(cluster, [shared + tail], N)
    lines = await _lines(dump, before + 3)
    header, new = lines[0], lines[before:]
    assert [json.loads(line)["prompt_tokens"] for line in new] == lengths
    part = tmp_path / "part.requests.jsonl"
    part.write_text("\n".join([header, *new]) + "\n")
    seed = rng.randrange(2**31)
    first = await _replayed(cluster, part, seed)
    assert (first["requests"], first["failed"]) == (3, 0)
    assert first["ttft_ms_p50"] > 0 and first["itl_ms_p99"] > 0
    share = 2 * 4 * BLOCK / (3 * 4 * BLOCK + 60)  # of tokens that an earlier prompt begins with
    assert first["hit_rate"] <= share + 0.01, "new prompts hit at most each other"
    again = await _replayed(cluster, part, seed)
    assert again["hit_rate"] >= share, "and now what came before"
    replayed = [json.loads(line) for line in (await _lines(dump, before + 9))[before + 3 :]]
    assert sorted(r["prompt_tokens"] for r in replayed) == sorted(2 * lengths)
    assert {r["output_tokens"] for r in replayed} == {N}
