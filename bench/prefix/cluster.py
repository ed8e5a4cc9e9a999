"""A trace's prompts on several workers, placed by the router's own code; no model runs."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, repeat

import numpy as np

from baton.bench.prefix.misses import Missed, Misses, Sought
from baton.bench.prefix.replay import Replay
from baton.engine.cache.snapshot_log import SnapshotLog
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import CacheReport, WorkerStatus
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.placement.in_flight import InFlight
from baton.router.placement.placer import Placer
from baton.router.placement.prefill_here import OFF, PrefillHere
from baton.router.policies.registry import POLICIES
from baton.text.prefix_digest import PromptPrefixes
from baton.worker.snapshot_feed import SnapshotFeed

REPORT_S = 0.05
"""The time from a change of a worker's cache until the router has its report."""
STEP_S = 0.03
"""The time of a decode step of ranks that compute prompts, without a part of one."""
LEAST_BESIDE = 64
"""The fewest prompt tokens in a step beside answers; else those that make it twice as long."""
_LEASE_S = 1.0  # no lease runs out: nobody counts its ticks


@dataclass
class Placed:
    """Sums over a trace's prompts, by worker where they are lists."""

    tokens: int = 0
    hit: int = 0
    computed: list[int] = field(default_factory=list)  # tokens that each worker computed
    waits_s: list[float] = field(default_factory=list)  # from each arrival to its first token
    on_ranks: int = 0  # prompts that decode ranks computed
    missed: Missed = field(default_factory=Missed)

    @property
    def hit_rate(self) -> float:
        return self.hit / self.tokens if self.tokens else 0.0

    @property
    def imbalance(self) -> float:
        """Return what the busiest worker computed, divided by the mean."""
        return max(self.computed) * len(self.computed) / (sum(self.computed) or 1)

    @property
    def rank_share(self) -> float:
        """Return the share of the prompts that decode ranks computed."""
        return self.on_ranks / (len(self.waits_s) or 1)

    def wait_ms(self, percentile: float) -> float:
        return 1000 * float(np.percentile(self.waits_s, percentile))


@dataclass
class _Prompt:
    arrived: float
    key: bytes
    answer_s: float  # from its first token to its last
    rank: "_ComputingWorker | None"  # which writes the answer; None: that costs nothing
    junctions: tuple[int, ...]
    in_flight: InFlight
    sought: Sought


class _ComputingWorker:
    """A worker that computes one prompt after the other. A decode rank writes answers besides."""

    def __init__(self, worker: Worker, cache: Replay) -> None:
        self.worker = worker
        self.cache = cache
        self.log = cache.cache.log = SnapshotLog()
        self.feed = SnapshotFeed()
        self.told = self.feed.whole()
        self.waiting: deque[_Prompt] = deque()
        self.running: _Prompt | None = None
        self.answers = 0

    def news(self) -> CacheReport | None:
        """Return what has changed in the cache since the last call."""
        report = self.feed.since(self.told.sequence)
        self.told = report or self.told
        return report


class PlacedReplay:
    """Workers with a cache each, behind the router's `Placer`, on a simulated clock."""

    def __init__(
        self,
        workers: int,
        policy: str,
        cache: Callable[[], Replay],
        tokens_s: float,
        grid: int,
        ranks: int = 0,
    ) -> None:
        """workers: that compute prompts alone. tokens_s: tokens a second that a worker computes.
        grid: where snapshots may lie. ranks: that write answers, and compute prompts by the rule of
        `--prefill-here auto`; 0: one takes all answers, and they cost nothing.
        """
        self._table = WorkerTable(_LEASE_S, lambda: 0.0)
        self._states = StateIndex(self._table)
        rule = PrefillHere(None if ranks else OFF)
        self._placer = Placer(
            self._table, self._states, lambda worker: True, POLICIES[policy](), prefill_here=rule
        )
        self._tokens_s = tokens_s
        settings = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
                    "mamba_checkpoint_grid": str(grid)}  # fmt: skip
        self._beside = max(LEAST_BESIDE, round(STEP_S * tokens_s))
        self._step_s = STEP_S if ranks else 0.0
        self._status = WorkerStatus(
            max_running=1 << 20,
            settings=settings,
            prompt_token_us=1e6 / tokens_s,
            decode_step_us=self._step_s * 1e6,
            beside_decode=self._beside,
        )
        joined = [self._join(f"prefill-{number}", PREFILL) for number in range(workers)]
        joined += [self._join(f"decode-{number}", DECODE) for number in range(ranks)]
        self._workers = [_ComputingWorker(each, cache()) for each in joined]
        for each in self._workers:
            self._states.report(each.worker, each.told)
        self._by_id = {each.worker.worker_id: each for each in self._workers}
        if not ranks:
            self._join("decode-0", DECODE)
        self._later: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()  # of what is due at the same time, the first comes first
        self._misses = Misses(grid)
        self._sums = Placed(computed=[0] * len(joined), missed=self._misses.missed)

    def run(
        self, prompts: Iterable[tuple[float, bytes]], answers: Iterable[int] = repeat(0)
    ) -> Placed:
        """Play prompts: when each arrives, in seconds and rising, and its key. answers: tokens of
        each answer, which none waits for but prompts on its rank."""
        for (arrived, key), tokens in zip(prompts, answers, strict=False):
            self._until(arrived)
            self._arrive(arrived, key, tokens * self._step_s)
        self._until(float("inf"))
        return self._sums

    def _join(self, name: str, role: int) -> Worker:
        identity = WorkerIdentity(worker_id=name, incarnation=1, address=name, role=role)  # type: ignore[arg-type]
        hello = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
        worker = self._table.register(hello)
        self._table.report(worker, self._status, leaving=False)
        return worker

    def _until(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            at, _, do = heappop(self._later)
            do(at)

    def _at(self, when: float, do: Callable[[float], None]) -> None:
        heappush(self._later, (when, next(self._numbers), do))

    def _arrive(self, now: float, key: bytes, answer_s: float) -> None:
        assignment = self._placer.place(PromptPrefixes(array("I", key)))
        if assignment is None:
            raise RuntimeError("no worker is there")
        in_flight = self._placer.track(assignment)
        sought = self._misses.arrived(key)
        rank = self._by_id.get(assignment.rank.worker_id)
        prompt = _Prompt(now, key, answer_s, rank, assignment.junctions, in_flight, sought)
        worker = self._by_id[assignment.reader.worker_id]
        self._sums.on_ranks += assignment.here
        worker.waiting.append(prompt)
        if worker.running is None:
            self._begin(worker, now)

    def _begin(self, worker: _ComputingWorker, now: float) -> None:
        prompt = worker.running = worker.waiting.popleft()
        done = worker.cache.compute(prompt.key, prompt.junctions)
        computed = done.tokens - done.hit
        self._sums.tokens += done.tokens
        self._sums.hit += done.hit
        number = self._workers.index(worker)
        self._sums.computed[number] += computed
        self._misses.begun(prompt.sought, done.hit)
        changes = worker.log.take()
        self._misses.changed(number, changes)
        worker.feed.add(changes)
        takes_s = computed / self._tokens_s
        if worker.answers:  # their steps come between its parts
            takes_s += computed / self._beside * self._step_s
        self._at(now + takes_s, lambda at: self._end(worker, at))

    def _end(self, worker: _ComputingWorker, now: float) -> None:
        prompt, worker.running = worker.running, None
        if prompt is None:
            raise RuntimeError("a worker ended a prompt that it had not begun")
        prompt.in_flight.prefill_done()
        if prompt.rank is None:
            prompt.in_flight.release()
        else:
            prompt.rank.answers += 1
            self._at(now + prompt.answer_s, lambda _: self._answered(prompt))
        self._sums.waits_s.append(now - prompt.arrived)
        report = worker.news()
        if report is not None:
            self._at(now + REPORT_S, lambda _: self._hear(worker, report))
        if worker.waiting:
            self._begin(worker, now)

    def _answered(self, prompt: _Prompt) -> None:
        prompt.in_flight.release()
        if prompt.rank is not None:
            prompt.rank.answers -= 1

    def _hear(self, worker: _ComputingWorker, report: CacheReport) -> None:
        if not self._states.report(worker.worker, report):
            raise RuntimeError("a report was lost")
        self._states.expected.heard(worker.worker)
