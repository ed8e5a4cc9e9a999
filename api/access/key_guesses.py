"""The limit on how often one address is told that its API key is not known."""

import time
from collections import OrderedDict
from collections.abc import Callable

from baton.api.access.client_limits import ClientLimits, Refusal, client_of
from baton.api.access.client_metrics import ClientMetrics
from baton.api.access.rate import MinuteRate
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError

MAX_CLIENTS = 4096
"""Addresses that are remembered; the one that failed least recently is forgotten."""


class KeyGuesses:
    """Failed authentications by address.

    A key that is right is never refused for others' failures: an address may be a proxy's, and
    256 bits are not guessed.
    """

    def __init__(
        self,
        limits: ClientLimits | None = None,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_minute = (limits or ClientLimits()).key_guesses_per_minute
        self._metrics = metrics
        self._clock = clock
        self._rates: OrderedDict[str, MinuteRate] = OrderedDict()  # by client

    def told(self, address: str, error: ApiError) -> ApiError:
        """Return the error that a client is told: `error`, or OVERLOADED for too many guesses."""
        if error.code is not ErrorCode.UNAUTHENTICATED:
            return error
        client = client_of(address)
        rate = self._rates.pop(client, None) or MinuteRate(self._per_minute, self._clock)
        self._rates[client] = rate
        if len(self._rates) > MAX_CLIENTS:
            self._rates.popitem(last=False)
        wait_s = rate.wait_s(1)
        if not wait_s:
            rate.use(1)
            self._refused(Refusal.KEY)
            return error
        self._refused(Refusal.KEY_GUESSES)
        return ApiError(
            ErrorCode.OVERLOADED,
            "this address sent too many requests without a known API key; send one with a key, or "
            "again later",
            expected=f"at most {self._per_minute} a minute",
            retry_after_s=wait_s,
        )

    def _refused(self, reason: Refusal) -> None:
        if self._metrics is not None:
            self._metrics.refused(reason)


def address_of_peer(peer: str) -> str:
    """Return the address in gRPC's name of a peer, `ipv4:127.0.0.1:80` or `ipv6:%5B::1%5D:80`."""
    kind, _, rest = peer.partition(":")
    if not kind.startswith("ip"):
        return peer
    return rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
