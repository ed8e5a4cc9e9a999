"""The time of a router's decisions, and of what workers report of their caches."""

import random
import time
from array import array
from collections import deque

from baton.bench.contract import percentile
from baton.bench.sessions.mix import draw_mix
from baton.engine.layout.owners import Owner
from baton.proto.common_pb2 import DECODE, PREFILL, Hello, WorkerIdentity
from baton.proto.version import PROTOCOL_MAJOR, PROTOCOL_MINOR
from baton.proto.worker_pb2 import CacheReport, OwnerCount, WorkerReport, WorkerStatus
from baton.router.cluster_view.state_index import MOST_PREFIXES, StateIndex
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.placement.in_flight import InFlight
from baton.router.placement.placer import Placer
from baton.router.policies.registry import POLICIES
from baton.text.prefix_digest import PromptPrefixes

GRID = 256
DEEPEST = 500  # steps of the grid: the longest prefixes have 128,000 tokens
DECISIONS = 400
REPORTS = 4
"""Reports between two decisions."""
UNDER_WAY = 2
"""Requests of each worker that have no first token yet."""
EVENTS_S = 20
"""Snapshots that a worker makes and evicts in a second: those of ten prompts or answers."""
STATUSES = 32
"""Different statuses that workers report."""
REPORTS_S = 10
"""Reports of a worker in a second, one for each of these."""
_SETTINGS = {"mamba_scheduler_strategy": '"extra_buffer"', "disable_radix_cache": "false",
             "mamba_checkpoint_grid": str(GRID), "chunked_prefill_size": "8192"}  # fmt: skip


class Decisions:
    """A router's placement with a full index of cached prefixes: half of the workers prefill."""

    def __init__(
        self, workers: int, policy: str, rng: random.Random, prefixes: int = MOST_PREFIXES
    ) -> None:
        """prefixes: that all workers together have cached."""
        self._rng = rng
        self._table = WorkerTable(1e9, lambda: 0.0)
        self.states = StateIndex(self._table)
        self._placer = Placer(self._table, self.states, lambda worker: True, POLICIES[policy]())
        self._workers = [self._join(number) for number in range(workers)]
        self._caches = {
            each.worker_id: deque(self._digests(prefixes // workers)) for each in self._workers
        }
        for each in self._workers:
            made = self._caches[each.worker_id]
            report = CacheReport(sequence=1, whole=True, made=made, depths=self._depths(len(made)))
            self.states.report(each, report)
        self._told = [
            WorkerReport(status=self._status(), same_details=True).SerializeToString()
            for _ in range(STATUSES)
        ]
        self._sequence = dict.fromkeys(self._caches, 1)
        self._under_way: deque[InFlight] = deque()

    def measure(self) -> dict[str, float]:
        """Return the CPU time of a decision, hashing the prompt included, of a snapshot that is
        made or evicted, and of a worker's status, in microseconds.
        """
        decisions, events_s, events, status_s = [], 0.0, 0, 0.0
        for lengths in draw_mix(None, DECISIONS, self._rng):
            prompt = array("I", self._rng.randbytes(4 * lengths.prompt))
            for number, worker in enumerate(self._rng.sample(self._workers, REPORTS)):
                report = self._changes(worker, prompt if number else None)
                began = time.thread_time()
                self.states.report(worker, WorkerReport.FromString(report).cache)
                events_s += time.thread_time() - began
                events += 2
                told = self._rng.choice(self._told)
                began = time.thread_time()
                status = WorkerReport.FromString(told).status
                self._table.report(worker, status, leaving=False, same_details=True)
                status_s += time.thread_time() - began
            began = time.thread_time()
            assignment = self._placer.place(PromptPrefixes(prompt))
            if assignment is None:
                raise RuntimeError("no worker is there")
            in_flight = self._placer.track(assignment)
            decisions.append(1e6 * (time.thread_time() - began))
            self._under_way.append(in_flight)
            if len(self._under_way) > UNDER_WAY * len(self._workers):
                self._under_way.popleft().release()
        return {
            "decision_us": sum(decisions) / len(decisions),
            "decision_us_p50": percentile(decisions, 0.5),
            "decision_us_p99": percentile(decisions, 0.99),
            "event_us": 1e6 * events_s / events,
            "events_core_pct": 100 * events_s / events * EVENTS_S * len(self._workers),
            "status_us": 2e6 * status_s / events,
            "statuses_core_pct": 200 * status_s / events * REPORTS_S * len(self._workers),
        }

    def _join(self, number: int) -> Worker:
        role, name = (PREFILL, "prefill") if number % 2 else (DECODE, "decode")
        identity = WorkerIdentity(
            worker_id=f"{name}-{number // 2}", incarnation=1, address="loopback:1", role=role,
            rank=number // 2,
        )  # fmt: skip
        hello = Hello(protocol_major=PROTOCOL_MAJOR, protocol_minor=PROTOCOL_MINOR, worker=identity)
        worker = self._table.register(hello)
        details = self._status()
        details.settings.update(_SETTINGS)
        self._table.report(worker, details, leaving=False)
        return worker

    def _status(self) -> WorkerStatus:
        owned = [OwnerCount(owner=owner, count=self._rng.randrange(9999)) for owner in Owner]
        return WorkerStatus(
            max_running=64, running=self._rng.randrange(48), model="model", page_size=64,
            queued_tokens=self._rng.randrange(20_000), uptime_s=1.0, prompt_token_us=30.0,
            decode_step_us=9e3, link_bytes_per_s=1e10, slots=owned, pages=owned,
        )  # fmt: skip

    def _changes(self, worker: Worker, prompt: "array[int] | None") -> bytes:
        """Return a report that a snapshot was made, of a prefix of the prompt, and one evicted."""
        made, depth = self._rng.getrandbits(64), self._depths(1)[0]
        if prompt is not None and len(prompt) > GRID:
            depth = GRID * self._rng.randint(1, (len(prompt) - 1) // GRID)
            made = PromptPrefixes(prompt).digests([depth])[0]
        name = worker.worker_id
        after, cache = self._sequence[name], self._caches[name]
        self._sequence[name] += 1
        cache.append(made)
        report = CacheReport(
            sequence=after + 1, after=after, made=[made], depths=[depth], evicted=[cache.popleft()]
        )
        return WorkerReport(cache=report).SerializeToString()

    def _digests(self, count: int) -> list[int]:
        return [self._rng.getrandbits(64) for _ in range(count)]

    def _depths(self, count: int) -> list[int]:
        return [GRID * self._rng.randint(1, DEEPEST) for _ in range(count)]
