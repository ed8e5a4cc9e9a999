"""Fifty prompts of 12 MB at once, beside sixteen streams: nobody waits for them."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from oracle.reference import Oracle
from oracle.specs import SPECS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.settings.config import EngineConfig

pytestmark = pytest.mark.chaos

CHECKPOINT = "granite_dense_nope"
STREAMS = 16
PROMPTS = 50
PAUSE_S = 0.1  # beyond the longest without long prompts
HEALTH_S = 0.2
SECONDS = 30.0
# Run by a process of its own, so that its work is not that of the streams' client.
FLOOD = """
import json, sys, threading, urllib.request, urllib.error
url, count = sys.argv[1], int(sys.argv[2])
body = json.dumps({"prompt": "hello world and some more " * 461_538, "max_tokens": 1}).encode()
def one():
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=600)
    except urllib.error.HTTPError as error:
        assert error.code == 400, error.read()
threads = [threading.Thread(target=one) for _ in range(count)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.fixture(scope="module")
def folder(oracle: Oracle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model with a tokenizer that normalises: no text is refused by its length alone."""
    source, made = oracle.checkpoint(CHECKPOINT), tmp_path_factory.mktemp("normalising")
    for path in source.iterdir():
        (made / path.name).symlink_to(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [f"<extra_{n}>" for n in range(3)]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = SPECS[CHECKPOINT].config["vocab_size"]
    trainer = BpeTrainer(vocab_size=size, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["hello world and some more words of a prompt"] * 9, trainer)
    (made / "tokenizer.json").unlink()
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    engine = EngineConfig(folder, page_size=16, max_running=STREAMS, memory_bytes=512 << 20)
    with Cluster(ClusterConfig(engine)) as cluster:
        yield cluster.http_url


async def longest_pause(client: httpx.AsyncClient, until: asyncio.Event) -> float:
    """Return the longest time between two chunks of streams that follow one another."""
    worst = 0.0
    body = {"prompt": "hello", "max_tokens": 400, "stream": True, "ignore_eos": True}
    while not until.is_set():
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            assert reply.status_code == 200
            last = None
            async for _ in reply.aiter_raw():
                now = time.perf_counter()
                worst = max(worst, now - (last or now))
                last = now
    return worst


async def slowest_health(client: httpx.AsyncClient, until: asyncio.Event) -> float:
    worst = 0.0
    while not until.is_set():
        begin = time.perf_counter()
        assert (await client.get("/health")).status_code == 200
        worst = max(worst, time.perf_counter() - begin)
        await asyncio.sleep(0.02)  # between two measurements
    return worst


async def measured(url: str, flood: bool) -> tuple[float, float]:
    """Return the longest pause of any stream and the slowest answer of `/health`."""
    until = asyncio.Event()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(longest_pause(client, until)) for _ in range(STREAMS)]
        tasks.append(asyncio.create_task(slowest_health(client, until)))
        await asyncio.sleep(2)  # streams of all clients are under way
        process = None
        if flood:
            command = [sys.executable, "-c", FLOOD, f"{url}/v1/completions", str(PROMPTS)]
            process = await asyncio.create_subprocess_exec(*command)
        await asyncio.sleep(SECONDS)  # as long as is measured
        if process is not None:  # they take turns, for minutes
            assert process.returncode is None, "every long prompt was answered too soon"
            process.kill()
            await process.wait()
        until.set()
        *pauses, health = await asyncio.gather(*tasks)
    return max(pauses), health


async def test_streams_and_health_do_not_wait_for_long_prompts(url: str) -> None:
    alone, quiet = await measured(url, flood=False)
    beside, busy = await measured(url, flood=True)
    print(f"pause {alone:.3f} s alone, {beside:.3f} s beside; health {quiet:.3f} s, {busy:.3f} s")
    assert beside < alone + PAUSE_S
    assert busy < HEALTH_S
