"""Where one request's time went. Durations only: no two processes' clocks are ever compared."""

from dataclasses import replace

from baton.api.backend import Timings


class RequestTimes:
    """One request's moments on the router's monotonic clock, in seconds."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.dispatched: float | None = None  # set when the rank was sent the request
        self.first_out: float | None = None  # set when the first token was handed on
        self.last_out = arrived  # set with each token

    def split(
        self, rank: Timings, *, first_in: float | None, held_us: int, finished: float
    ) -> Timings:
        """The rank's durations with the router's own.

        first_in: when the first token came from the rank; held_us: how long it had lain there.
        What no clock saw is `network_us`, so that the parts of TTFT add up to it.
        """
        e2e = _us(finished - self.arrived)
        queue = 0 if self.dispatched is None else _us(self.dispatched - self.arrived)
        if self.first_out is None or first_in is None:
            return replace(rank, e2e_us=e2e, router_queue_us=queue)
        ttft = _us(self.first_out - self.arrived)
        delivery = held_us + _us(self.first_out - first_in)
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
