"""The decode ranks that hold the state after a prefix, as they reported when answers ended."""

from collections.abc import Sequence

from baton.core.cache_salt import SHARED
from baton.core.role import Role
from baton.router.worker_table import Worker, WorkerTable, id_order
from baton.text.prefix_index import PrefixIndex

MAX_PREFIXES = 32768
"""Prefixes that a router remembers, in about 10 MB."""


_Content = tuple[str, int, int]  # (worker_id, incarnation, flushes)


class StateIndex:
    """A map from token prefixes to the ranks that hold their state.

    An entry belongs to one content of a rank's cache: a rank that is started again has lost it,
    and so has one whose cache was flushed, by this router or another.
    """

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._index = PrefixIndex[_Content](MAX_PREFIXES)

    def add(self, rank: Worker, token_ids: Sequence[int], salt: bytes = SHARED) -> None:
        """Record that `rank` has cached the state after exactly these tokens, and their KV, under
        the cache salt `salt`."""
        # `rank` is as it was when the request was placed.
        present = self._table.find(rank.worker_id)
        if present is not None and present.registration == rank.registration:
            self._index.add(token_ids, _content(present), salt)

    def find(self, token_ids: Sequence[int], salt: bytes = SHARED) -> list[tuple[int, Worker]]:
        """Return (tokens, rank) of every rank that stays and holds the state of a prefix under
        `salt`.

        tokens: the length of the longest such prefix that leaves a token to compute. The longest
        come first; equals are in the table's order.
        """
        found = [
            (tokens, rank)
            for content, tokens in self._index.held(token_ids, salt).items()
            if (rank := self._table.find(content[0])) is not None
            and rank.role is Role.DECODE
            and not rank.leaving
            and _content(rank) == content
        ]
        return sorted(found, key=lambda each: (-each[0], id_order(each[1].worker_id)))

    def clear(self) -> None:
        """Forget all prefixes, after the caches have been emptied."""
        self._index.clear()


def _content(rank: Worker) -> _Content:
    return rank.worker_id, rank.identity.incarnation, rank.status.flushes
