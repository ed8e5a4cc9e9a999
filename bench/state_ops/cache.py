"""CPU time of the prefix cache per block of a trace: match, lock, take pages, insert, unlock."""

import random
import time
from array import array

from baton.bench.prefix.budget import CacheBudget
from baton.bench.prefix.prefix import MODEL_GRID, SIZES
from baton.bench.prefix.replay import Replay
from baton.bench.prefix.trace import BLOCK, TokenRuns, TraceRequest
from baton.engine.layout.token_key import TOKEN_BYTES, token_key

GIGABYTES = 128.0
SNAPSHOTS = 4  # a prompt, at most
TOGETHER = 50  # requests whose keys are made, untimed, before they are replayed


def conversations(rng: random.Random, talks: int = 150, turns: int = 8) -> list[TraceRequest]:
    """Make a trace like the published ones.

    Conversations begin alike, take turns, and grow by some blocks a turn; the prompt of a turn is
    the whole conversation.
    """
    fresh = iter(range(1, 1 << 40))
    open_talks = [[0] for _ in range(talks)]
    trace: list[TraceRequest] = []
    for _ in range(talks * turns):
        talk = rng.choice(open_talks)
        talk += [next(fresh) for _ in range(rng.randint(1, 12))]
        length = len(talk) * BLOCK - rng.randrange(BLOCK)
        trace.append(TraceRequest(len(trace), length, rng.randint(1, 500), tuple(talk)))
    return trace


def match_insert_us(trace: list[TraceRequest], seed: int, page_size: int) -> float:
    """Return microseconds of CPU time a block over the whole trace, evictions included."""
    budget = CacheBudget.divided(GIGABYTES * 1e9, 1.0, page_size, SIZES)
    replay = Replay(page_size, MODEL_GRID, budget, SNAPSHOTS, SIZES)
    runs = TokenRuns(seed)
    seconds = 0.0
    for first in range(0, len(trace), TOGETHER):
        keys = list(runs.keys(trace[first : first + TOGETHER]))
        began = time.thread_time()
        replay.run(keys)
        seconds += time.thread_time() - began
    replay.check()
    return seconds / sum(len(request.hash_ids) for request in trace) * 1e6


def token_key_us(trace: list[TraceRequest], seed: int) -> float:
    """Return microseconds of CPU time to make a block of token ids into the cache's key."""
    runs = TokenRuns(seed)
    seconds, tokens = 0.0, 0
    for request in trace[:: max(1, len(trace) // 100)]:
        prompt = tuple(array("i", runs.key(request)))
        began = time.thread_time()
        key = token_key(prompt)
        seconds += time.thread_time() - began
        tokens += len(key) // TOKEN_BYTES
    return seconds / tokens * BLOCK * 1e6
