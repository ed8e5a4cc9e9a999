"""The router's Prometheus metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from baton.core.finish import Timings, Usage
from baton.core.role import ROUTED_ROLES, Role
from baton.router.key_metrics import KeyMetrics
from baton.router.latency_histogram import LatencyHistogram
from baton.router.worker_table import Worker

# Three buckets a decade from 100 us to 500 s: a small model's whole decode step is 1 ms.
BUCKETS = tuple(round(step * 10.0**e, 6) for e in range(-4, 3) for step in (1, 2, 5))
TTFT_PARTS = ("router_queue", "prefill_queue", "prefill", "delivery", "network")
SECOND_TOKEN_PARTS = ("transfer", "decode_wait", "first_decode_step")


class RouterMetrics:
    """The metrics of one router, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        rank = "worker", "dp_group", "dp_rank"
        self._requests = self._counter(
            "requests", "Requests that ended, by finish reason or error code.", "outcome"
        )
        self._tokens = self._counter(
            "tokens", "Prompt and output tokens of requests that a rank finished.", "kind"
        )
        self._cached_tokens = self._counter(
            "cached_tokens", "Prompt tokens that were not computed, because they were cached."
        )
        self._placements = self._counter(
            "placements", "Attempts that were started on a decode rank.", *rank
        )
        self._retries = self._counter(
            "retries", "Attempts that a decode rank lost, and that another rank continues.", *rank
        )
        self._state_hits = self._counter(
            "state_hits", "Attempts for which a rank was known to hold the state of a prefix."
        )
        self._state_hit_tokens = self._counter(
            "state_hit_tokens", "Tokens of the prefixes whose state a rank was known to hold."
        )
        self._workers = self._gauge("workers", "Workers that hold a lease.", "role")
        self._rank_requests = self._gauge(
            "rank_requests", "Requests of this router on a decode rank.", *rank
        )
        self.active = self._gauge("requests_active", "Requests that have not ended.")
        self._certificates = self._gauge(
            "certificate_expiry_seconds", "Time until a certificate's end.", "certificate"
        )
        self._ttft = self._histogram("ttft", "From arrival to the first token sent.")
        self._queue = self._histogram("queue", "From arrival to dispatch to a decode rank.")
        self._e2e = self._histogram("e2e", "From arrival to the end of the answer.")
        ttft_part = self._histogram("ttft_part", "The parts that TTFT is the sum of.", "part")
        second_part = self._histogram(
            "second_token_part", "The parts of the time from the first to the second token.", "part"
        )
        # `labels` takes a lock, so the children are looked up once and not for each request.
        self._ttft_parts = [ttft_part.labels(part) for part in TTFT_PARTS]
        self._second_parts = [second_part.labels(part) for part in SECOND_TOKEN_PARTS]
        self._itl = LatencyHistogram(
            "baton_router_itl_seconds",
            "Time between successive output tokens.",
            BUCKETS,
            self.registry,
        )
        self._keys = KeyMetrics(self.registry)
        for role in ROUTED_ROLES:
            self._workers.labels(role.value).set(0)

    def page(self) -> bytes:
        """Return the text that `/metrics` serves."""
        return generate_latest(self.registry)

    def workers(self, role: Role, count: int) -> None:
        self._workers.labels(role.value).set(count)

    def placed(self, rank: Worker) -> None:
        self._placements.labels(*_names(rank)).inc()

    def replaced(self, rank: Worker) -> None:
        self._retries.labels(*_names(rank)).inc()

    def certificate(self, name: str, seconds_left: Callable[[], float]) -> None:
        """Export a certificate's end. seconds_left: called when it is scraped."""
        self._certificates.labels(name).set_function(seconds_left)

    def state_known(self, tokens: int) -> None:
        self._state_hits.inc()
        self._state_hit_tokens.inc(tokens)

    def rank_joined(self, rank: Worker, requests: Callable[[], float]) -> None:
        """Export the requests on a new rank. requests: returns their number when it is scraped."""
        self._rank_requests.labels(*_names(rank)).set_function(requests)

    def rank_left(self, rank: Worker) -> None:
        self._rank_requests.remove(*_names(rank))

    def between_tokens(self, seconds: float, tokens: int) -> None:
        """Record that `tokens` tokens came together, `seconds` after the token before them."""
        self._itl.observe(seconds / tokens, tokens)

    def dispatched(self, queue_s: float) -> None:
        self._queue.observe(queue_s)

    def ended(self, outcome: str, owner: str | None) -> None:
        """Count the end of a request; called once for each request. owner: its API key's name."""
        self._requests.labels(outcome).inc()
        self._keys.ended(owner, outcome)

    def finished(self, usage: Usage, timings: Timings, owner: str | None) -> None:
        """Record a request that its rank finished. owner: its API key's name."""
        self._keys.finished(owner, usage)
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("output").inc(usage.completion_tokens)
        self._cached_tokens.inc(usage.cached_tokens)
        self._e2e.observe(timings.e2e_us / 1e6)
        if timings.ttft_us:
            self._ttft.observe(timings.ttft_us / 1e6)
            for part, us in zip(self._ttft_parts, _ttft_parts(timings), strict=True):
                part.observe(us / 1e6)
        if usage.completion_tokens > 1:
            for part, us in zip(self._second_parts, _second_parts(timings), strict=True):
                part.observe(us / 1e6)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Make a counter; it is exported as baton_router_<name>_total."""
        return Counter(f"baton_router_{name}", meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        return Gauge(f"baton_router_{name}", meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, *labels: str) -> Histogram:
        return Histogram(
            f"baton_router_{name}_seconds", meaning, labels, registry=self.registry, buckets=BUCKETS
        )


def _names(rank: Worker) -> tuple[str, str, str]:
    return rank.worker_id, str(rank.group), str(rank.rank)


def _ttft_parts(t: Timings) -> tuple[int, ...]:
    return t.router_queue_us, t.prefill_queue_us, t.prefill_us, t.delivery_us, t.network_us


def _second_parts(t: Timings) -> tuple[int, ...]:
    return t.transfer_us, t.decode_wait_us, t.first_decode_step_us
