"""The parts of a request's time.

Only durations are exchanged between processes, because their clocks are not comparable.
"""

from dataclasses import dataclass

from baton.core.finish import Timings, Usage, altered


@dataclass(frozen=True)
class BrokenOff:
    """The part that there was of a request whose client left, or which failed."""

    usage: Usage  # its prompt counts once a token was written
    ttft_s: float | None  # None: no token came
    e2e_s: float  # up to its end


class RequestTimes:
    """The moments of one request on the router's monotonic clock, in seconds."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.dispatched: float | None = None  # set when the rank was sent the request
        self.first_out: float | None = None  # set when the first token was sent on
        self._first_in = arrived  # when the first token came from its rank
        self._held_us = 0  # how long the rank had held it
        self._attempt = 0  # the attempt that brought it
        self.last_out = arrived  # when the newest token was sent on

    def first_token(self, attempt: int, came: float, held_us: int, out: float) -> None:
        """Record the first token.

        came: when it arrived from the rank, which had held it for `held_us`. out: when it was
        sent on.
        """
        self._attempt, self._first_in, self._held_us = attempt, came, held_us
        self.first_out = out

    def split(self, rank: Timings, attempt: int, finished: float) -> Timings:
        """Return the rank's durations, measured in `attempt`, completed with the router's own.

        Time that neither process measured is `network_us`, so that the parts of TTFT add up to
        it. If another attempt brought the first token, the rank's parts of TTFT are unknown and 0.
        """
        e2e = _us(finished - self.arrived)
        queue = 0 if self.dispatched is None else _us(self.dispatched - self.arrived)
        if self.first_out is None:
            return altered(rank, e2e_us=e2e, router_queue_us=queue)
        if attempt != self._attempt:
            rank = altered(rank, prefill_queue_us=0, prefill_us=0)
        ttft = _us(self.first_out - self.arrived)
        delivery = self._held_us + _us(self.first_out - self._first_in)
        seen = queue + rank.prefill_queue_us + rank.prefill_us + delivery
        return altered(
            rank,
            e2e_us=e2e,
            router_queue_us=queue,
            ttft_us=ttft,
            delivery_us=delivery,
            network_us=max(ttft - seen, 0),
        )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
