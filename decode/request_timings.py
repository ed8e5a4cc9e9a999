"""The timings of one request on a decode rank."""

import time

from baton.proto import common_pb2, handoff_pb2
from baton.worker.caller_span import CallerSpan
from baton.worker.metrics import WorkerMetrics


class RequestTimings:
    """The times of one request, as its last message and the rank's metrics report them.

    Every argument `at_s` is by `time.monotonic`.
    """

    def __init__(self, metrics: WorkerMetrics, trace: CallerSpan | None = None) -> None:
        """trace: where spans are recorded; None: nowhere."""
        self.message = common_pb2.Timings()
        self.first_step_ended = False
        self.launched = False
        """True once the first decode step has started."""
        self._metrics = metrics
        self._trace = trace
        self._has_first_token = False
        now_s = time.monotonic()
        self._first_token_s = now_s
        self._layers_ended_s = now_s  # of the prefill
        self._complete_s = now_s
        self._launched_s = now_s
        self._prefills_here = False

    @property
    def since_first_token_us(self) -> int:
        return _us(time.monotonic() - self._first_token_s)

    def prefill_here(self) -> None:
        """Note that this rank's engine is asked to compute the prompt."""
        self._prefills_here = True
        self._complete_s = time.monotonic()

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None:
        """Note that the prefill worker's first token has just arrived."""
        self._first_token_s = time.monotonic()
        self._has_first_token = True
        self.message.prefill_queue_us = first.prefill_queue_us
        self.message.prefill_us = first.prefill_us

    def on_complete(self, layers_ended_s: float) -> None:
        """Note that the last byte has just been checked.

        layers_ended_s: when the prefill's last layer was computed.
        """
        self._layers_ended_s = layers_ended_s
        self._complete_s = time.monotonic()
        transfer_s = self._complete_s - self._first_token_s
        self.message.transfer_us = _us(transfer_s)
        self._metrics.transfer.observe(transfer_s)
        if self._trace is not None:
            # A given first token comes from nobody: the prefill's end stands for it.
            since_s = self._first_token_s if self._has_first_token else layers_ended_s
            self._trace.record("transfer", since_s, self._complete_s)

    def on_launched(self, at_s: float) -> None:
        """Note that the first step starts: of decoding, or of a prompt that is computed here."""
        self.launched = True
        self._launched_s = at_s
        if self._prefills_here:
            self.message.prefill_queue_us = _us(at_s - self._complete_s)
            self._metrics.prefill_queue.observe(at_s - self._complete_s)
            return
        wait_s, since_prefill_s = at_s - self._complete_s, at_s - self._layers_ended_s
        self.message.decode_wait_us = _us(wait_s)
        self.message.prefill_to_decode_us = _us(since_prefill_s)
        self._metrics.decode_wait.observe(wait_s)
        self._metrics.prefill_to_decode.observe(since_prefill_s)

    def on_first_step_ended(self, at_s: float) -> None:
        """Note that the step of the first token that is sampled here has ended."""
        self.first_step_ended = True
        step_s = at_s - self._launched_s
        if self._prefills_here:
            self.message.prefill_us = _us(step_s)
            self._metrics.prefill.observe(step_s)
            return
        self.message.first_decode_step_us = _us(step_s)
        self._metrics.first_decode_step.observe(step_s)
        if self._trace is not None:
            self._trace.record("first decode", self._launched_s, at_s)


def _us(seconds: float) -> int:
    return round(max(0.0, seconds) * 1e6)
