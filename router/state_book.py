"""Which decode ranks have the state after which prefix, as they said when answers ended."""

from collections.abc import Sequence

from baton.proto.common_pb2 import StateAt
from baton.router.worker_table import Role, Worker, WorkerTable
from baton.text.prefix_book import PrefixBook

KEPT = 32768
"""Prefixes that a router remembers: some 10 MB."""


class StateBook:
    """A rank that is started again has lost its cache, so a state is one start's alone."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._book = PrefixBook[tuple[str, int]](KEPT)  # (worker_id, incarnation)

    def keep(self, rank: Worker, token_ids: Sequence[int]) -> None:
        """`rank` has the state after exactly these tokens, and the KV of them, in its cache."""
        self._book.add(token_ids, _start(rank))

    def held(self, token_ids: Sequence[int]) -> list[tuple[int, Worker]]:
        """(tokens, rank) for each rank that stays and has the state of a prefix: of the longest
        that leaves a token to compute. The deepest first."""
        held = self._book.held(token_ids)
        ranks = [w for w in self._table.workers(Role.DECODE) if not w.leaving]
        found = [(held[_start(rank)], rank) for rank in ranks if _start(rank) in held]
        return sorted(found, key=lambda each: -each[0])

    def deepest(self, token_ids: Sequence[int]) -> StateAt | None:
        """Where a prefill worker may fetch the most from."""
        for tokens, rank in self.held(token_ids):
            return StateAt(worker=rank.identity, tokens=tokens)
        return None

    def clear(self) -> None:
        """The caches have been emptied."""
        self._book.clear()


def _start(rank: Worker) -> tuple[str, int]:
    return rank.worker_id, rank.identity.incarnation
