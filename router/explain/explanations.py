"""The requests of a router whose placement can be explained: those that run, and the newest that
ended."""

import re
from collections import deque
from collections.abc import Callable

from baton.api.errors import shorten
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.router.cluster_view.eviction_log import EvictionLog
from baton.router.explain.explanation import JsonObject, explanation
from baton.router.sessions.live_requests import LiveRequest, LiveRequests
from baton.router.sessions.request_history import RequestHistory

MOST_REQUESTS = 256
MOST_TOKENS = 1 << 22
"""The most tokens of the prompts of all requests that have ended, in 16 MB."""
_PREFIX = re.compile(r"^(chatcmpl-|cmpl-|resp_|msg_)")


class Explanations:
    """The histories of requests. Keeping one costs little; the rest is done when somebody asks."""

    def __init__(
        self,
        router_id: str,
        live: LiveRequests,
        evictions: EvictionLog,
        clock: Callable[[], float],
        most_requests: int = MOST_REQUESTS,
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        """clock: monotonic, in seconds, that of the requests' times."""
        self._router_id = router_id
        self._live = live
        self._evictions = evictions
        self._clock = clock
        self._most_requests = most_requests
        self._most_tokens = most_tokens
        self._ended: deque[RequestHistory] = deque()
        self._tokens = 0

    def keep(self, live: LiveRequest) -> None:
        """Remember a request that is over, and forget the oldest where there are too many."""
        if not live.placed:
            return  # it never had a worker
        self._ended.append(live.history(over=True))
        self._tokens += len(self._ended[-1].prompt)
        while len(self._ended) > self._most_requests or self._tokens > self._most_tokens:
            self._tokens -= len(self._ended.popleft().prompt)

    def of(self, live: LiveRequest) -> JsonObject:
        """Return the explanation of a request that is about to end."""
        return self._explain(live.history(over=True))

    def find(self, name: str, owner: str | None) -> JsonObject:
        """Return the explanation of the newest request of `owner` that `name` means.

        name: its own id, that of its reply, its client's, or its X-Request-Id. owner: None:
        everybody's. Raises NOT_FOUND.
        """
        names = {name, _PREFIX.sub("", name)}
        every = [
            *self._ended,
            *(each.history(over=False) for each in self._live.named(None, owner)),
        ]
        meant = [each for each in every if each.is_meant(names, owner)]
        if not meant:
            raise self._unknown(name)
        newest = max(meant, key=lambda each: each.arrived_s)
        found = self._explain(newest)
        found["age_s"] = round(self._clock() - newest.arrived_s, 3)
        found["same_name"] = [each.request_id for each in meant if each is not newest]
        return found

    def _explain(self, history: RequestHistory) -> JsonObject:
        return explanation(history, self._evictions.find(history.prompt), self._router_id)

    def _unknown(self, name: str) -> ApiError:
        return ApiError(
            ErrorCode.NOT_FOUND,
            f"no request {shorten(repr(name))} is known here: a router keeps what runs, and the "
            f"last {self._most_requests} requests that ended, fewer where their prompts have more "
            f"than {self._most_tokens:,} tokens together; of several routers, each knows its own "
            "requests alone",
            param="request_id",
        )
