"""A trace's prompts on several prefill workers, placed by the router's own code; no model runs."""

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

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
from baton.router.policies.registry import POLICIES
from baton.text.prefix_digest import PromptPrefixes
from baton.worker.snapshot_feed import SnapshotFeed

REPORT_S = 0.05
"""The time from a change of a worker's cache until the router has its report."""
_LEASE_S = 1.0  # no lease runs out: nobody counts its ticks


@dataclass
class Placed:
    """Sums over a trace's prompts, by worker where they are lists."""

    tokens: int = 0
    hit: int = 0
    computed: list[int] = field(default_factory=list)  # tokens that each worker computed
    waits_s: list[float] = field(default_factory=list)  # from each arrival to its first token
    missed: Missed = field(default_factory=Missed)

    @property
    def hit_rate(self) -> float:
        return self.hit / self.tokens if self.tokens else 0.0

    @property
    def imbalance(self) -> float:
        """Return what the busiest worker computed, divided by the mean."""
        return max(self.computed) * len(self.computed) / (sum(self.computed) or 1)

    def wait_ms(self, percentile: float) -> float:
        return 1000 * float(np.percentile(self.waits_s, percentile))


@dataclass
class _Prompt:
    arrived: float
    key: bytes
    junctions: tuple[int, ...]
    in_flight: InFlight
    sought: Sought


class _PrefillWorker:
    """A worker that computes one prompt after the other."""

    def __init__(self, worker: Worker, cache: Replay) -> None:
        self.worker = worker
        self.cache = cache
        self.log = cache.cache.log = SnapshotLog()
        self.feed = SnapshotFeed()
        self.told = self.feed.whole()
        self.waiting: deque[_Prompt] = deque()
        self.running: _Prompt | None = None

    def news(self) -> CacheReport | None:
        """Return what has changed in the cache since the last call."""
        report = self.feed.since(self.told.sequence)
        self.told = report or self.told
        return report


class PlacedReplay:
    """Prefill workers with a cache each, behind the router's `Placer`, on a simulated clock."""

    def __init__(
        self,
        workers: int,
        policy: str,
        cache: Callable[[], Replay],
        tokens_s: float,
        grid: int,
    ) -> None:
        """tokens_s: tokens a second that a worker computes. grid: where snapshots may lie."""
        self._table = WorkerTable(_LEASE_S, lambda: 0.0)
        self._states = StateIndex(self._table)
        self._placer = Placer(self._table, self._states, lambda worker: True, POLICIES[policy]())
        self._tokens_s = tokens_s
        settings = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
                    "mamba_checkpoint_grid": str(grid)}  # fmt: skip
        self._status = WorkerStatus(max_running=1 << 20, settings=settings)
        self._workers = [
            _PrefillWorker(self._join(f"prefill-{number}", PREFILL), cache())
            for number in range(workers)
        ]
        for each in self._workers:
            self._states.report(each.worker, each.told)
        self._by_id = {each.worker.worker_id: each for each in self._workers}
        self._join("decode-0", DECODE)
        self._later: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()  # of what is due at the same time, the first comes first
        self._misses = Misses(grid)
        self._sums = Placed(computed=[0] * workers, missed=self._misses.missed)

    def run(self, prompts: Iterable[tuple[float, bytes]]) -> Placed:
        """Play prompts: when each arrives, in seconds and rising, and its key."""
        for arrived, key in prompts:
            self._until(arrived)
            self._arrive(arrived, key)
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

    def _arrive(self, now: float, key: bytes) -> None:
        assignment = self._placer.place(PromptPrefixes(array("I", key)))
        if assignment is None:
            raise RuntimeError("no worker is there")
        in_flight = self._placer.track(assignment)
        prompt = _Prompt(now, key, assignment.junctions, in_flight, self._misses.arrived(key))
        worker = self._by_id[assignment.prefills[0].worker_id]
        worker.waiting.append(prompt)
        if worker.running is None:
            self._begin(worker, now)

    def _begin(self, worker: _PrefillWorker, now: float) -> None:
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
        self._at(now + computed / self._tokens_s, lambda at: self._end(worker, at))

    def _end(self, worker: _PrefillWorker, now: float) -> None:
        prompt, worker.running = worker.running, None
        if prompt is None:
            raise RuntimeError("a worker ended a prompt that it had not begun")
        prompt.in_flight.prefill_done()
        prompt.in_flight.release()
        self._sums.waits_s.append(now - prompt.arrived)
        report = worker.news()
        if report is not None:
            self._at(now + REPORT_S, lambda _: self._hear(worker, report))
        if worker.waiting:
            self._begin(worker, now)

    def _hear(self, worker: _PrefillWorker, report: CacheReport) -> None:
        if not self._states.report(worker.worker, report):
            raise RuntimeError("a report was lost")
        self._states.expected.heard(worker.worker)
