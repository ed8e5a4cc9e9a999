"""The metrics of the API keys, which are the tenants of a cluster."""

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter

from baton.core.finish import Usage

MAX_KEYS = 1000
"""Keys with series of their own. The keys of a file change while the router runs; series stay."""
OTHERS = "(others)"


class KeyMetrics:
    """Requests and tokens by the name of the key that sent them. Without keys, nothing is counted.

    `/metrics` shows names of keys only to those with the scope `metrics`.
    """

    def __init__(self, registry: CollectorRegistry, max_keys: int = MAX_KEYS) -> None:
        """max_keys: further keys are counted together, as `OTHERS`."""
        self._max_keys = max_keys
        self._known: set[str] = set()
        requests = Counter(
            "baton_router_key_requests",
            "Requests of an API key that ended, by finish reason or error code.",
            ("key", "outcome"),
            registry=registry,
        )
        tokens = Counter(
            "baton_router_key_tokens",
            "Prompt and output tokens of an API key's requests that had a first token.",
            ("key", "kind"),
            registry=registry,
        )
        cached = Counter(
            "baton_router_key_cached_tokens",
            "Prompt tokens of an API key's requests that finished, cached and not computed.",
            ("key",),
            registry=registry,
        )
        # `labels` takes a lock and makes texts of all names, for each request.
        self._requests: Callable[[str, str], Counter] = cache(requests.labels)
        self._tokens: Callable[[str, str], Counter] = cache(tokens.labels)
        self._cached: Callable[[str], Counter] = cache(cached.labels)

    def ended(self, owner: str | None, outcome: str) -> None:
        """Count the end of a request. owner: the name of its key, or None."""
        if owner is not None:
            self._requests(self._label(owner), outcome).inc()

    def finished(self, owner: str | None, usage: Usage) -> None:
        """Count the tokens of a request that has ended."""
        if owner is None:
            return
        label = self._label(owner)
        self._tokens(label, "prompt").inc(usage.prompt_tokens)
        self._tokens(label, "output").inc(usage.completion_tokens)
        self._cached(label).inc(usage.cached_tokens)

    def _label(self, owner: str) -> str:
        if owner not in self._known:
            if len(self._known) >= self._max_keys:
                return OTHERS
            self._known.add(owner)
        return owner
