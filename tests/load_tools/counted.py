"""Counts of a router and of Baton's own client, in the terms of a tool's report."""

import asyncio
import random
import urllib.request
from collections.abc import Mapping
from itertools import chain
from statistics import fmean

from load_tools.tool import Load, Reported, Server
from prometheus_client.parser import text_string_to_metric_families

from baton.bench.cluster.stream_client import StreamedAnswer, complete
from baton.bench.sessions.chat_model import VOCABULARY

DEADLINE_S = 120.0
Page = Mapping[str, float]
"""The sum of the samples of each name of a page of metrics."""


def page_of(server: Server) -> Page:
    """Fetch the router's metrics."""
    with urllib.request.urlopen(server.metrics[0], timeout=DEADLINE_S) as reply:
        text = reply.read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def counted(before: Page, after: Page) -> Reported:
    """Return what a router has counted between two pages, by its names for vLLM's dashboards."""

    def more(name: str) -> float:
        return after[name] - before[name]

    def mean_ms(name: str) -> float:
        return 1e3 * more(f"{name}_sum") / max(1.0, more(f"{name}_count"))

    return Reported(
        requests=int(more("vllm:request_success_total")),
        input_tokens=int(more("vllm:prompt_tokens_total")),
        output_tokens=int(more("vllm:generation_tokens_total")),
        ttft_ms=mean_ms("vllm:time_to_first_token_seconds"),
        itl_ms=mean_ms("vllm:inter_token_latency_seconds"),
    )


def own_client(server: Server, load: Load) -> Reported:
    """Send the load by the client of `baton bench`."""
    rng = random.Random(1)

    async def one(number: int) -> StreamedAnswer:
        await asyncio.sleep(number / load.rate)  # until it is due
        body = {
            "prompt": [rng.randrange(10, VOCABULARY) for _ in range(load.input_len)],
            "max_tokens": load.output_len,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return await complete(server.url, body, DEADLINE_S)

    async def all_() -> list[StreamedAnswer]:
        return await asyncio.gather(*(one(number) for number in range(load.requests)))

    answers = asyncio.run(all_())
    return Reported(
        requests=len(answers),
        input_tokens=load.input_len * len(answers),
        output_tokens=sum(len(answer.token_ids) for answer in answers),
        ttft_ms=1e3 * fmean(answer.ttft for answer in answers),
        itl_ms=1e3 * fmean(chain.from_iterable(answer.itls for answer in answers)),
    )
