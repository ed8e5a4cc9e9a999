"""A worker's Prometheus metrics, on a registry of their own."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from baton.engine.counters import Counters
from baton.engine.memory.owners import Owner
from baton.engine.status import EngineStatus
from baton.transfer.handoff import HandoffState
from baton.transfer.segments import Kind
from baton.worker.config import Role
from baton.worker.engine_counters import EngineCounters

# From 100 us, a factor of 10 ** (1/4) apart: fifteen of them lie under 5 ms or near it, where a
# small model's steps and hand-offs are.
BUCKETS = tuple(round(1e-4 * 10 ** (step / 4), 7) for step in range(25))


class WorkerMetrics:
    """Every metric carries the worker's id and role. Thread-safe, as prometheus_client is."""

    def __init__(self, worker_id: str, role: Role) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"worker": worker_id, "role": role.value}
        self._requests = self._counter("requests", "Requests that ended here", "outcome")
        self._tokens = self._counter("tokens", "Tokens computed or sampled", "kind")
        self._bytes = self._counter("bytes_moved", "State between workers", "kind", "direction")
        self._moves = self._counter("handoff_moves", "Moves of hand-offs", "from", "to")
        self._handoffs = self._gauge("handoffs", "Hand-offs in each state", "state")
        self._slots = self._gauge("slots", "State slots by owner", "owner")
        self._pages = self._gauge("pages", "KV pages by owner", "owner")
        self._running = self._gauge("requests_running", "Requests that take part in steps")
        self._waiting = self._gauge("requests_waiting", "Requests that wait for the engine")
        self._lag = self._gauge("lag_seconds", "What the engine took to answer, or has not since")
        self._engine = EngineCounters(self._labels, self.registry)
        self.step = self._histogram("step", "One step of the engine")
        self.prefill_queue = self._histogram("prefill_queue", "Arrival to first chunk")
        self.prefill = self._histogram("prefill", "First chunk to first token")
        self.transfer = self._histogram("transfer", "First token seen to last byte checked")
        self.decode_wait = self._histogram("decode_wait", "Last byte to the first step's launch")
        self._fetches = self._counter(
            "prefix_fetches", "Prefixes asked of another worker's cache", "outcome"
        )
        self.prefill_to_decode = self._histogram(
            "prefill_to_decode", "The prefill's last layer to the launch of the first decode step"
        )
        self.first_decode_step = self._histogram("first_decode_step", "A request's first step")

    def count_request(self, outcome: str) -> None:
        self._requests.labels(**self._labels, outcome=outcome).inc()

    def count_fetch(self, outcome: str) -> None:
        self._fetches.labels(**self._labels, outcome=outcome).inc()

    def count_tokens(self, kind: str, count: int) -> None:
        """kind: prompt or output."""
        self._tokens.labels(**self._labels, kind=kind).inc(count)

    def count_sent(self, kind: Kind, nbytes: int) -> None:
        self._count_bytes(kind, "sent", nbytes)

    def count_received(self, kind: Kind, nbytes: int) -> None:
        self._count_bytes(kind, "received", nbytes)

    def count_move(self, source: HandoffState, to: HandoffState) -> None:
        self._moves.labels(**self._labels, **{"from": source.value, "to": to.value}).inc()

    def set_handoffs(self, state: HandoffState, count: int) -> None:
        self._handoffs.labels(**self._labels, state=state.value).set(count)

    def set_status(self, status: EngineStatus) -> None:
        self._running.labels(**self._labels).set(status.running)
        self._waiting.labels(**self._labels).set(status.waiting)
        self._set_owners(self._slots, status.slots)
        self._set_owners(self._pages, status.pages)

    def set_lag(self, seconds: float) -> None:
        self._lag.labels(**self._labels).set(seconds)

    def set_counters(self, counters: Counters) -> None:
        """counters: a copy, made on the engine's thread."""
        self._engine.update(counters)

    def observe_step(self, seconds: float) -> None:
        self.step.observe(seconds)

    def _set_owners(self, gauge: Gauge, owned: Mapping[Owner, int]) -> None:
        for owner, count in owned.items():
            gauge.labels(**self._labels, owner=owner.value).set(count)

    def _count_bytes(self, kind: Kind, direction: str, nbytes: int) -> None:
        name = kind.name.lower()
        self._bytes.labels(**self._labels, kind=name, direction=direction).inc(nbytes)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        """Exported as baton_<name>_total."""
        return Counter(f"baton_{name}", what, (*self._labels, *labels), registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"baton_{name}", what, (*self._labels, *labels), registry=self.registry)

    def _histogram(self, name: str, what: str) -> Histogram:
        return Histogram(
            f"baton_{name}_seconds",
            what,
            tuple(self._labels),
            registry=self.registry,
            buckets=BUCKETS,
        ).labels(**self._labels)
