"""One round of requests against a server, and the measurements of its clients."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import uvloop

from baton.bench.cluster.stream_client import Exchange, StreamedAnswer, exchange
from baton.bench.contract import percentile
from baton.deploy.client.router_options import RouterAddress

DEADLINE_S = 600.0


@dataclass(frozen=True)
class Load:
    """Requests of one shape: `concurrency` at a time until `requests` are answered."""

    requests: int
    concurrency: int
    input_len: int
    output_len: int

    def draw(self, rng: random.Random, vocab_size: int) -> list[list[int]]:
        """Draw new prompts of random token ids: [requests][input_len]."""
        return [
            [rng.randrange(vocab_size) for _ in range(self.input_len)] for _ in range(self.requests)
        ]


def play(
    server: RouterAddress,
    load: Load,
    prompts: Sequence[Sequence[int]],
    more: Sequence[Mapping[str, object]] | None = None,
) -> list[StreamedAnswer]:
    """Call `run` on an event loop of its own that takes little of the servers' CPU time."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(server, load, prompts, more=more))


async def run(
    server: RouterAddress,
    load: Load,
    prompts: Sequence[Sequence[int]],
    model: str | None = None,
    more: Sequence[Mapping[str, object]] | None = None,
) -> list[StreamedAnswer]:
    """Return greedy answers of exactly `output_len` tokens, in the order of the prompts.

    more: further fields for each request. Raises RequestFailed as soon as a connection fails, or at
    the end if any reply is not a stream of tokens.
    """
    free = asyncio.Semaphore(load.concurrency)

    async def one(prompt: Sequence[int], said: Mapping[str, object]) -> Exchange:
        body: dict[str, object] = {
            **said,
            "prompt": list(prompt),
            "max_tokens": load.output_len,
            "min_tokens": load.output_len,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if model is not None:
            body["model"] = model
        async with free:
            return await exchange(server, body, DEADLINE_S)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(prompt, said))
            for prompt, said in zip(prompts, more or [{}] * len(prompts), strict=True)
        ]
    return [task.result().answer() for task in tasks]


def measure(load: Load, answers: Sequence[StreamedAnswer]) -> dict[str, float]:
    """Return rates over the whole round and latencies over its tokens, by the contract's keys."""
    return figures(answers, load.input_len * len(answers))


def figures(answers: Sequence[StreamedAnswer], input_tokens: int) -> dict[str, float]:
    """Return what `measure` does, of answers to prompts of `input_tokens` tokens in all."""
    seconds = max(a.ended for a in answers) - min(a.sent for a in answers)
    written = sum(len(a.token_ids) for a in answers)
    ttfts = [a.ttft * 1e3 for a in answers]
    itls = list(chain.from_iterable([gap * 1e3 for gap in a.itls] for a in answers)) or [0.0]
    return {
        "output_tok_s": written / seconds,
        "total_tok_s": (written + input_tokens) / seconds,
        "ttft_ms_p50": percentile(ttfts, 0.50),
        "ttft_ms_p99": percentile(ttfts, 0.99),
        "itl_ms_p50": percentile(itls, 0.50),
        "itl_ms_p99": percentile(itls, 0.99),
    }
