"""Where one request's time went. Durations only: no two processes' clocks are ever compared."""

from dataclasses import replace

from baton.api.backend import Timings


class RequestTimes:
    """One request's moments on the router's monotonic clock, in seconds."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.dispatched: float | None = None  # set when the rank was sent the request
        self.first_out: float | None = None  # set when the first token was handed on
        self._first_in = arrived  # when that had come from its rank
        self._held_us = 0  # how long it had lain there
        self._attempt = 0  # that brought it
        self.last_out = arrived  # set with each token

    def first_token(self, attempt: int, came: float, held_us: int, out: float) -> None:
        """It came from the rank at `came`, after `held_us` there, and was handed on at `out`."""
        self._attempt, self._first_in, self._held_us = attempt, came, held_us
        self.first_out = out

    def split(self, rank: Timings, attempt: int, finished: float) -> Timings:
        """The rank's durations, of its `attempt`, with the router's own.

        What no clock saw is `network_us`, so that the parts of TTFT add up to it. Where a rank was
        lost after the first token, its part of TTFT was lost with it.
        """
        e2e = _us(finished - self.arrived)
        queue = 0 if self.dispatched is None else _us(self.dispatched - self.arrived)
        if self.first_out is None:
            return replace(rank, e2e_us=e2e, router_queue_us=queue)
        if attempt != self._attempt:
            rank = replace(rank, prefill_queue_us=0, prefill_us=0)
        ttft = _us(self.first_out - self.arrived)
        delivery = self._held_us + _us(self.first_out - self._first_in)
        seen = queue + rank.prefill_queue_us + rank.prefill_us + delivery
        return replace(
            rank,
            e2e_us=e2e,
            router_queue_us=queue,
            ttft_us=ttft,
            delivery_us=delivery,
            network_us=max(ttft - seen, 0),
        )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
