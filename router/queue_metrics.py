"""The metrics of the requests that wait at a router."""

from baton.api.admission.admission_queue import AdmissionQueue
from baton.router.metric_factory import RouterMetricFactory

REFUSALS = ("full", "displaced", "timeout")


class QueueMetrics:
    """The queue's length, how fast it empties, and whom it refused."""

    def __init__(self, make: RouterMetricFactory) -> None:
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
        self._waiting.set_function(lambda: queue.waiting)
        self._tokens.set_function(lambda: queue.waiting_tokens)
        self._rate.set_function(lambda: queue.tokens_per_s)

    def refused(self, reason: str) -> None:
        self._refusals.labels(reason).inc()
