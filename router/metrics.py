"""The router's Prometheus metrics."""

from collections.abc import Callable
from functools import cache

from prometheus_client import Counter, generate_latest

from baton.api.admission.admission_queue import AdmissionQueue
from baton.core.finish import Timings, Usage
from baton.router.cluster_metrics import ClusterMetrics
from baton.router.key_metrics import KeyMetrics
from baton.router.metric_factory import RouterMetricFactory
from baton.router.request_times import BrokenOff
from baton.rpc.metric_aliases.figures import Latency, ServedWork
from baton.rpc.metric_aliases.of_registry import by_label, only, value_of, with_label

TTFT_PARTS = ("router_queue", "prefill_queue", "prefill", "delivery", "network")
SECOND_TOKEN_PARTS = ("transfer", "decode_wait", "first_decode_step")
REFUSALS = ("full", "displaced", "timeout")


class RouterMetrics:
    """The metrics of one router, in a registry of their own."""

    def __init__(self) -> None:
        make = RouterMetricFactory()
        self.registry = make.registry
        self.cluster = ClusterMetrics(make)
        self.queue = QueueMetrics(make)
        self._requests = make.counter(
            "requests", "Requests that ended, by finish reason or error code.", "outcome"
        )
        self._tokens = make.counter(
            "tokens",
            "Prompt and output tokens of requests that had a first token.",
            "kind",
        )
        self._cached = CachedTokens(make)
        self._state_hits = make.counter(
            "state_hits", "Attempts for which a rank was known to hold the state of a prefix."
        )
        self._state_hit_tokens = make.counter(
            "state_hit_tokens", "Tokens of the prefixes whose state a rank was known to hold."
        )
        self._load = (
            make.gauge("requests_active", "Requests that have not ended."),
            make.gauge("requests_capacity", "Requests that the decode ranks run at once."),
            make.gauge(
                "requests_queued", "Requests beyond those that the decode ranks run at once."
            ),
        )
        self._certificates = make.gauge(
            "certificate_expiry_seconds", "Time until a certificate's end.", "certificate"
        )
        self._ttft = make.histogram("ttft", "From arrival to the first token sent.")
        self._queue = make.histogram("queue", "From arrival to dispatch to a decode rank.")
        self._e2e = make.histogram("e2e", "From arrival to the end of the answer.")
        self._ttft_part = make.parted("ttft_part", "The parts that TTFT is the sum of.", TTFT_PARTS)
        second_part = make.parted(
            "second_token_part",
            "The parts of the time from the first to the second token.",
            SECOND_TOKEN_PARTS,
        )
        self._second_parts = [*second_part.parts.values()]
        self._itl = make.histogram("itl", "Time between successive output tokens.")
        self._keys = KeyMetrics(self.registry)
        # `labels` takes a lock, and a rate needs the 0 before the first request.
        self._outcome: Callable[[str], Counter] = cache(self._requests.labels)
        self._kinds = [self._tokens.labels(kind) for kind in ("prompt", "output")]

    def page(self) -> bytes:
        """Return the text that `/metrics` serves."""
        return generate_latest(self.registry)

    def served(self) -> ServedWork:
        """Return what requests were given so far, for the metric names of other servers."""
        tokens = by_label(self._tokens, "kind")
        whole = {Latency.TTFT: self._ttft, Latency.E2E: self._e2e, Latency.QUEUE: self._queue}
        return ServedWork(
            prompt_tokens=tokens["prompt"],
            cached_tokens=value_of(self._cached.every),
            cached_host_tokens=value_of(self._cached.host),
            cached_file_tokens=value_of(self._cached.file),
            output_tokens=tokens["output"],
            outcomes=by_label(self._requests, "outcome"),
            latencies={
                **{latency: only(histogram) for latency, histogram in whole.items()},
                Latency.ITL: only(self._itl),
                Latency.PREFILL: with_label(self._ttft_part, "part", "prefill"),
            },
        )

    def serves(self, active: Callable[[], float], capacity: Callable[[], float]) -> None:
        """Export the router's load. active, capacity: called when they are scraped."""
        present, most, queued = self._load
        present.set_function(active)
        most.set_function(capacity)
        queued.set_function(lambda: max(active() - capacity(), 0))

    def certificate(self, name: str, seconds_left: Callable[[], float]) -> None:
        """Export a certificate's end. seconds_left: called when it is scraped."""
        self._certificates.labels(name).set_function(seconds_left)

    def state_known(self, tokens: int) -> None:
        self._state_hits.inc()
        self._state_hit_tokens.inc(tokens)

    def between_tokens(self, seconds: float, tokens: int) -> None:
        """Record that `tokens` tokens came together, `seconds` after the token before them."""
        self._itl.observe(seconds / tokens, tokens)

    def dispatched(self, queue_s: float) -> None:
        self._queue.observe(queue_s)

    def ended(self, outcome: str, owner: str | None, broken_off: BrokenOff | None = None) -> None:
        """Count the end of a request; called once for each request.

        owner: its API key's name. broken_off: what there was of one that no rank finished.
        """
        self._outcome(outcome).inc()
        self._keys.ended(owner, outcome)
        if broken_off is not None:
            self._count(broken_off.usage, owner)
            self._e2e.observe(broken_off.e2e_s)
            if broken_off.ttft_s is not None:
                self._ttft.observe(broken_off.ttft_s)

    def finished(self, usage: Usage, timings: Timings, owner: str | None) -> None:
        """Record a request that its rank finished. owner: its API key's name."""
        self._count(usage, owner)
        self._e2e.observe(timings.e2e_us / 1e6)
        if timings.ttft_us:
            self._ttft.observe(timings.ttft_us / 1e6)
            for part, us in zip(self._ttft_part.parts.values(), _ttft_parts(timings), strict=True):
                part.observe(us / 1e6)
        if usage.completion_tokens > 1:
            for part, us in zip(self._second_parts, _second_parts(timings), strict=True):
                part.observe(us / 1e6)

    def _count(self, usage: Usage, owner: str | None) -> None:
        self._keys.finished(owner, usage)
        prompt, output = self._kinds
        prompt.inc(usage.prompt_tokens)
        output.inc(usage.completion_tokens)
        if usage.cached_tokens:
            self._cached.every.inc(usage.cached_tokens)
            self._cached.host.inc(usage.cached_host_tokens)
            self._cached.file.inc(usage.cached_file_tokens)


def _ttft_parts(t: Timings) -> tuple[int, ...]:
    return t.router_queue_us, t.prefill_queue_us, t.prefill_us, t.delivery_us, t.network_us


def _second_parts(t: Timings) -> tuple[int, ...]:
    return t.transfer_us, t.decode_wait_us, t.first_decode_step_us


class CachedTokens:
    """The counters of prompt tokens that no worker computed."""

    def __init__(self, make: RouterMetricFactory) -> None:
        self.every = make.counter(
            "cached_tokens",
            "Prompt tokens of finished requests that were cached, not computed.",
        )
        self.host = make.counter(
            "cached_host_tokens",
            "Prompt tokens of finished requests that came back from the host's tier of a worker.",
        )
        self.file = make.counter(
            "cached_file_tokens",
            "Prompt tokens of finished requests whose state a worker has read from files.",
        )


class QueueMetrics:
    """The queue's length, how fast it empties, and whom it refused."""

    def __init__(self, make: RouterMetricFactory) -> None:
        self.waiting: Callable[[], int] = lambda: 0
        """Returns the requests that wait at the router."""
        self._waiting = make.gauge(
            "requests_waiting", "Requests that wait at the router for room on the workers."
        )
        self._tokens = make.gauge(
            "waiting_tokens", "Tokens of the requests that wait at the router."
        )
        self._rate = make.gauge(
            "drain_rate", "Tokens a second that left the queue while something waited; 0: none yet."
        )
        self._refusals = make.counter(
            "queue_refusals", "Requests that the queue had no room or no time for.", "reason"
        )
        for reason in REFUSALS:  # a rate needs the 0 before the first one
            self._refusals.labels(reason)

    def serves(self, queue: AdmissionQueue) -> None:
        """Export a queue. It is read when metrics are scraped."""
        self.waiting = lambda: queue.waiting
        self._waiting.set_function(self.waiting)
        self._tokens.set_function(lambda: queue.waiting_tokens)
        self._rate.set_function(lambda: queue.tokens_per_s)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()
