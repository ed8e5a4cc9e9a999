"""The first token of a hand-off, and the times until it."""

import time

from baton.core.handoff_ids import HandoffId
from baton.engine.request.events import Scheduled, TokenSampled
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import handoff_to_proto, logprob_to_proto
from baton.worker.metrics import WorkerMetrics


class FirstTokenRecord:
    """The rank's FirstToken message, filled as the engine's events come."""

    def __init__(self, name: HandoffId, metrics: WorkerMetrics) -> None:
        self._message = handoff_pb2.FirstToken(**handoff_to_proto(name))
        self._metrics = metrics
        self._arrived_s = time.monotonic()
        self._scheduled_s = self._arrived_s

    def on_scheduled(self, event: Scheduled, at_s: float) -> None:
        """Note that the first chunk is planned. at_s: by `time.monotonic`."""
        self._message.cached_tokens = event.cached_tokens
        self._message.cached_kv = event.cached_kv
        self._message.cached_host = event.cached_host
        self._message.cached_file = event.cached_file
        self._scheduled_s = at_s
        self._metrics.prefill_queue.observe(at_s - self._arrived_s)

    def on_sampled(self, event: TokenSampled, at_s: float) -> None:
        """Take the token. at_s: when the prompt's last step ended."""
        self._metrics.prefill.observe(at_s - self._scheduled_s)
        self._metrics.count_tokens("output", 1)
        self._message.token_id = event.token_id
        if event.logprob is not None:
            self._message.logprob.CopyFrom(logprob_to_proto(event.logprob))

    def message(
        self,
        at_s: float,
        *,
        done: handoff_pb2.Done | None = None,
        finished: common_pb2.Finished | None = None,
        fetch: common_pb2.StateFetch | None = None,
    ) -> handoff_pb2.FirstToken:
        """Return the message to send. at_s: when the prompt's last step ended.

        done: given where every segment is posted already, so that one message says both.
        finished: given where the request ends here. fetch: what became of the state that another
        worker has; None: it was not asked.
        """
        self._message.prefill_queue_us = _us(self._scheduled_s - self._arrived_s)
        self._message.prefill_us = _us(at_s - self._scheduled_s)
        if done is not None:
            self._message.done.CopyFrom(done)
        if finished is not None:
            self._message.finished.CopyFrom(finished)
        if fetch is not None:
            self._message.fetch.CopyFrom(fetch)
        return self._message


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
