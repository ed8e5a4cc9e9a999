"""A part of a published trace as a load that a small machine can serve."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import uvloop

from baton.bench.cluster.load import DEADLINE_S
from baton.bench.cluster.stream_client import Exchange, StreamedAnswer, exchange
from baton.bench.contract import percentile
from baton.bench.prefix.trace import BLOCK, TraceRequest
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.process.tuning import keep_what_is_loaded


def conversations(requests: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    """Return the requests by conversation: those whose first two blocks are alike. One block alone
    may be a system prompt that all of them have; a prompt of one block is by itself.
    """
    found: dict[tuple[int, ...], list[TraceRequest]] = {}
    for number, request in enumerate(requests):
        name = request.hash_ids[:2] if len(request.hash_ids) > 1 else (-1, number)
        found.setdefault(name, []).append(request)
    return list(found.values())


def sample(requests: Sequence[TraceRequest], count: int, rng: random.Random) -> list[TraceRequest]:
    """Return whole conversations drawn at random, at least `count` requests if there are so many,
    in their order.
    """
    drawn: list[TraceRequest] = []
    every = conversations(requests)
    rng.shuffle(every)
    for conversation in every:
        if len(drawn) >= count:
            break
        drawn += conversation
    return sorted(drawn, key=lambda request: request.timestamp)


def cacheable_share(requests: Sequence[TraceRequest]) -> float:
    """Return the share of prompt tokens that one cache which forgets nothing would have."""
    seen: set[int] = set()
    cached = 0
    for request in requests:
        known = next(
            (i for i, block in enumerate(request.hash_ids) if block not in seen),
            len(request.hash_ids),
        )
        cached += min(known * BLOCK, request.input_length)
        seen.update(request.hash_ids)
    return cached / (sum(request.input_length for request in requests) or 1)


@dataclass(frozen=True)
class TraceLoad:
    """Requests of a trace: lengths divided by `divide`, `rate` arrivals a second on the average.

    max_len: tokens of a prompt and its answer together; what is longer is cut.
    """

    requests: Sequence[TraceRequest]
    rate: float
    divide: int
    max_len: int
    vocab_size: int

    def due_s(self) -> list[float]:
        """Return each request's time of arrival, in seconds from the first one's."""
        first, last = self.requests[0].timestamp, self.requests[-1].timestamp
        per_ms = len(self.requests) / self.rate / ((last - first) or 1)
        return [(request.timestamp - first) * per_ms for request in self.requests]

    def output_len(self, request: TraceRequest) -> int:
        return max(2, min(request.output_length // self.divide, self.max_len // 2))

    def prompts(self, seed: int) -> list[list[int]]:
        """Return prompts that share what those of the trace share. Other seeds share nothing."""
        found = []
        for request in self.requests:
            length = min(
                max(1, request.input_length // self.divide),
                self.max_len - self.output_len(request),
            )
            blocks = (self._block(seed, block) for block in request.hash_ids)
            found.append(list(chain.from_iterable(blocks))[:length])
        return found

    def _block(self, seed: int, hash_id: int) -> list[int]:
        rng = random.Random(f"{seed} {hash_id}")
        return [rng.randrange(self.vocab_size) for _ in range(BLOCK // self.divide)]


def play_trace(
    server: RouterAddress, load: TraceLoad, prompts: Sequence[Sequence[int]]
) -> list[StreamedAnswer]:
    """Send each request at its time, and return the greedy answers. Raises RequestFailed."""
    keep_what_is_loaded()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_all(server, load, prompts))


async def _all(
    server: RouterAddress, load: TraceLoad, prompts: Sequence[Sequence[int]]
) -> list[StreamedAnswer]:
    began = time.perf_counter()

    async def one(due_s: float, prompt: Sequence[int], output_len: int) -> Exchange:
        await asyncio.sleep(began + due_s - time.perf_counter())
        body = {
            "prompt": prompt,
            "max_tokens": output_len,
            "min_tokens": output_len,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return await exchange(server, body, DEADLINE_S)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(one(due_s, prompt, load.output_len(request)))
            for due_s, prompt, request in zip(load.due_s(), prompts, load.requests, strict=True)
        ]
    return [task.result().answer() for task in tasks]


def figures(
    answers: Sequence[StreamedAnswer], prompts: Sequence[Sequence[int]], slo_s: float
) -> dict[str, float]:
    """Return latencies, the answers a second whose first token came within `slo_s`, and the share
    of prompt tokens that were cached.
    """
    seconds = max(each.ended for each in answers) - min(each.sent for each in answers)
    ttfts = [each.ttft * 1e3 for each in answers]
    itls = [gap * 1e3 for each in answers for gap in each.itls]
    return {
        "ttft_ms_p50": percentile(ttfts, 0.50),
        "ttft_ms_p99": percentile(ttfts, 0.99),
        "itl_ms_p50": percentile(itls, 0.50),
        "itl_ms_p99": percentile(itls, 0.99),
        "goodput_requests_s": sum(each.ttft <= slo_s for each in answers) / seconds,
        "cached_share": sum(e.cached_tokens for e in answers) / sum(map(len, prompts)),
    }
