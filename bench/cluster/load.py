"""One round of requests against a server, and the measurements of its clients."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import uvloop

from baton.bench.cluster.stream_client import Exchange, StreamedAnswer, exchange
from baton.bench.contract import percentile
from baton.core.supervised import child
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.process.tuning import keep_what_is_loaded

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
    gap_s: float = 0.0,
    read: Callable[[], None] = lambda: None,
) -> list[StreamedAnswer]:
    """Call `run` on an event loop of its own that takes little of the servers' CPU time.

    gap_s: seconds from one look at the sockets to the next; 0 reads whatever comes at once. A
    client that is woken for each token takes the cores that it measures, and takes them from a
    step under way. Times of tokens are no more exact than this, rates over seconds are.
    read: called when all replies are read, before they are parsed.
    """

    async def all_() -> list[StreamedAnswer]:
        napping = child(_nap(gap_s)) if gap_s else None
        try:
            return await run(server, load, prompts, more=more, read=read)
        finally:
            if napping is not None:
                napping.cancel()

    keep_what_is_loaded()  # a collection takes the client 200 ms: it would be the largest gap
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(all_())


async def _nap(seconds: float) -> None:
    """Let the loop sleep between two of its turns, until cancelled."""
    while True:
        time.sleep(seconds)  # the whole loop: nothing else is to run meanwhile
        await asyncio.sleep(0)


async def run(
    server: RouterAddress,
    load: Load,
    prompts: Sequence[Sequence[int]],
    model: str | None = None,
    more: Sequence[Mapping[str, object]] | None = None,
    read: Callable[[], None] = lambda: None,
) -> list[StreamedAnswer]:
    """Return greedy answers of exactly `output_len` tokens, in the order of the prompts.

    more: further fields for each request. read: called before the replies are parsed. Raises
    RequestFailed as soon as a connection fails, or at the end if any
    reply is not a stream of tokens.
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
    read()
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
        "itl_ms_mean": fmean(itls),
        "itl_ms_p50": percentile(itls, 0.50),
        "itl_ms_p99": percentile(itls, 0.99),
    }
