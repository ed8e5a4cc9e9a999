"""What the router tells Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from baton.api.backend import Timings, Usage
from baton.router.latency_histogram import LatencyHistogram
from baton.router.worker_table import Role, Worker

# Three buckets a decade from 100 us to 500 s: a small model's whole decode step is 1 ms.
BUCKETS = tuple(round(step * 10.0**e, 6) for e in range(-4, 3) for step in (1, 2, 5))
TTFT_PARTS = ("router_queue", "prefill_queue", "prefill", "delivery", "network")
SECOND_TOKEN_PARTS = ("transfer", "decode_wait", "first_decode_step")


class RouterMetrics:
    """One router's numbers, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "baton_router_requests_total",
            "Requests that ended, by finish reason or error code.",
            ["outcome"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "baton_tokens_total",
            "Tokens of requests that ended; cached: prompt tokens that were not computed again.",
            ["kind"],
            registry=self.registry,
        )
        self._workers = Gauge(
            "baton_workers",
            "Workers that hold a lease with this router.",
            ["role"],
            registry=self.registry,
        )
        rank = ["worker", "dp_group", "dp_rank"]
        self._placed = Counter(
            "baton_placements_total",
            "Requests that were placed on a decode rank, by rank.",
            rank,
            registry=self.registry,
        )
        self._replaced = Counter(
            "baton_replaced_total",
            "Requests that a decode rank lost and that went on elsewhere, by that rank.",
            rank,
            registry=self.registry,
        )
        self._states_known = Counter(
            "baton_states_known_total",
            "Placements of which the router knew a rank that has the state of their first tokens.",
            registry=self.registry,
        )
        self._state_tokens = Counter(
            "baton_states_known_tokens_total",
            "Tokens that those states stand for.",
            registry=self.registry,
        )
        self._on_rank = Gauge(
            "baton_rank_requests",
            "Requests of this router that a decode rank has.",
            rank,
            registry=self.registry,
        )
        self.active = Gauge(
            "baton_requests_active", "Requests that have not ended.", registry=self.registry
        )
        self._ttft = self._seconds("baton_ttft_seconds", "Arrival to first token out.")
        self._queue = self._seconds(
            "baton_router_queue_seconds", "Arrival to dispatch to a decode rank."
        )
        ttft_part = self._seconds(
            "baton_ttft_part_seconds", "The parts that TTFT is the sum of.", "part"
        )
        second_part = self._seconds(
            "baton_second_token_part_seconds",
            "The parts of the time from first to second token.",
            "part",
        )
        # `labels` looks its child up under a lock: once here rather than at every request.
        self._ttft_parts = [ttft_part.labels(part) for part in TTFT_PARTS]
        self._second_parts = [second_part.labels(part) for part in SECOND_TOKEN_PARTS]
        self._itl = LatencyHistogram(
            "baton_itl_seconds", "Between one output token and the next.", BUCKETS, self.registry
        )
        self._e2e = self._seconds("baton_e2e_seconds", "Arrival to finish.")
        for role in Role:
            self._workers.labels(role.value).set(0)

    def page(self) -> bytes:
        """The text that /metrics serves."""
        return generate_latest(self.registry)

    def workers(self, role: Role, count: int) -> None:
        self._workers.labels(role.value).set(count)

    def placed(self, rank: Worker) -> None:
        self._placed.labels(*_names(rank)).inc()

    def replaced(self, rank: Worker) -> None:
        self._replaced.labels(*_names(rank)).inc()

    def state_known(self, tokens: int) -> None:
        self._states_known.inc()
        self._state_tokens.inc(tokens)

    def rank_joined(self, rank: Worker, requests: Callable[[], float]) -> None:
        """requests: those of this router that it has, when it is asked."""
        self._on_rank.labels(*_names(rank)).set_function(requests)

    def rank_left(self, rank: Worker) -> None:
        self._on_rank.remove(*_names(rank))

    def between_tokens(self, seconds: float, tokens: int) -> None:
        """`tokens` came together, `seconds` after the one before them."""
        self._itl.observe(seconds / tokens, tokens)

    def dispatched(self, queue_s: float) -> None:
        self._queue.observe(queue_s)

    def ended(self, outcome: str) -> None:
        """Once a request, whatever became of it."""
        self._requests.labels(outcome).inc()

    def finished(self, usage: Usage, timings: Timings) -> None:
        """Once a request that its rank finished."""
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("output").inc(usage.completion_tokens)
        self._tokens.labels("cached").inc(usage.cached_tokens)
        self._e2e.observe(timings.e2e_us / 1e6)
        if timings.ttft_us:
            self._ttft.observe(timings.ttft_us / 1e6)
            for part, us in zip(self._ttft_parts, _ttft_parts(timings), strict=True):
                part.observe(us / 1e6)
        if usage.completion_tokens > 1:
            for part, us in zip(self._second_parts, _second_parts(timings), strict=True):
                part.observe(us / 1e6)

    def _seconds(self, name: str, help_text: str, *labels: str) -> Histogram:
        return Histogram(name, help_text, labels, registry=self.registry, buckets=BUCKETS)


def _names(rank: Worker) -> tuple[str, str, str]:
    return rank.worker_id, str(rank.group), str(rank.rank)


def _ttft_parts(t: Timings) -> tuple[int, ...]:
    return t.router_queue_us, t.prefill_queue_us, t.prefill_us, t.delivery_us, t.network_us


def _second_parts(t: Timings) -> tuple[int, ...]:
    return t.transfer_us, t.decode_wait_us, t.first_decode_step_us
