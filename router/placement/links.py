"""The bandwidths of the links from prefill workers to decode ranks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.core.links import is_slow
from baton.proto.worker_pb2 import WorkerStatus


class Links(NamedTuple):
    """The bandwidths where they differ. One is made at each change of what workers report."""

    best: float  # bytes a second of the best link of the cluster
    rates: Sequence[float]  # bytes a second of each prefill worker's links but those in `slow`
    slow: Mapping[int, Mapping[str, float]]  # by row of the prefill worker and id of the rank
    state_bytes: int  # of a request's recurrent state
    token_bytes: int  # of a token's KV

    def extra_s(self, prefill: int, rank: str, tokens: int) -> float:
        """Return the seconds by which a hand-off takes longer than over the best link.

        prefill: the row of the worker. rank: a worker id. tokens: those whose KV the rank lacks.
        """
        return self.extras_s(prefill, [rank], tokens)[0]

    def extras_s(self, prefill: int, ranks: Sequence[str], tokens: int) -> list[float]:
        """Return the same of several ranks, which lack as many tokens each."""
        size = self.state_bytes + tokens * self.token_bytes
        least = 1 / self.best

        def extra_s(rate: float) -> float:
            return max(0.0, size * (1 / rate - least))

        common, slow = extra_s(self.rates[prefill]), self.slow.get(prefill)
        if not slow:
            return [common] * len(ranks)
        return [common if rate is None else extra_s(rate) for rate in map(slow.get, ranks)]


class LinkTable:
    """The bandwidths that prefill workers have reported, by row of the worker."""

    def __init__(self) -> None:
        self._rates: list[float] = []  # of each worker's fastest link; 0: not known
        self._slow: dict[int, dict[str, float]] = {}
        self._sizes = 0, 0
        self._links: Links | None = None
        self._changed = False

    def clear(self, workers: int) -> None:
        """Forget all; there are so many workers now."""
        self._rates = [0.0] * workers
        self._slow = {}
        self._changed = True

    def set(self, row: int, status: WorkerStatus) -> None:
        """Follow a report. A worker says the same again unless a bandwidth has changed much."""
        rate = max(0.0, status.link_bytes_per_s)
        if rate != self._rates[row]:
            self._rates[row] = rate
            self._change(status)
        told = status.slow_links
        if not told and row not in self._slow:
            return
        slow = {rank: slow for rank, slow in told.items() if slow > 0}
        if slow != self._slow.pop(row, {}):
            self._change(status)
        if slow:
            self._slow[row] = slow

    def _change(self, status: WorkerStatus) -> None:
        self._sizes = status.state_bytes, status.token_bytes
        self._changed = True

    def differing(self) -> Links | None:
        """Return the links; None if no bandwidth is known, or all are alike.

        A worker that has measured none counts as the best: so its links are used and measured.
        """
        if self._changed:
            self._changed = False
            self._links = self._made()
        return self._links

    def _made(self) -> Links | None:
        best = max(self._rates, default=0.0)
        slow = [rate > 0 and is_slow(rate, best, *self._sizes) for rate in self._rates]
        even = [rate if each else best for rate, each in zip(self._rates, slow, strict=True)]
        if not best or (not self._slow and min(even) == best):
            return None
        return Links(best, even, dict(self._slow), *self._sizes)
