"""Prefixes that one engine's cache lends to another's, and takes from it.

What moves is a snapshot, the state after a whole number of pages, and the KV of its tokens. The
lender keeps what is lent in place; the borrower reserves memory as for a hand-off, and its cache
takes over what has come.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from baton.core.errors import RequestError
from baton.core.state_ref import StateRef
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.cache.prefix_node import Node
from baton.engine.cache.salted_prefix import SaltedPrefix
from baton.engine.cache.snapshot_log import SnapshotLog
from baton.engine.handoff.reservations import Reservations
from baton.engine.layout.token_key import token_key
from baton.engine.request.request import Request, Reservation
from baton.engine.schedule.canary import Canary


@dataclass(frozen=True, eq=False)
class Loan:
    """A locked prefix of the cache. Neither the slot nor the pages change before `give_back`."""

    state: StateRef
    node: Node  # locked; for the engine's thread alone


class PrefixShare:
    """The loans of one engine's cache, and the log of what it has. Used on the engine's thread."""

    def __init__(
        self, pools: CachedPools, reservations: Reservations, canary: Canary | None
    ) -> None:
        self.pools = pools
        self.reservations = reservations
        self.canary = canary
        self._loans: set[Loan] = set()

    def log_snapshots(self) -> SnapshotLog:
        """Log what the cache has of snapshots, and what becomes of them, in place of any earlier
        log. Call this while no step runs."""
        self.pools.cache.tell(log := SnapshotLog())
        return log

    @property
    def loans(self) -> Collection[Loan]:
        return self._loans

    def state_tokens(self, prefix: SaltedPrefix) -> int:
        """Return how many of the tokens a request that begins with them could resume from."""
        return self.pools.cache.match(prefix.key, len(prefix), prefix.salt).depth

    def lend(self, prefix: SaltedPrefix) -> Loan | None:
        """Lock the deepest state that the cache has of this prefix, and its KV. None if it has
        none.
        """
        match = self.pools.cache.match(prefix.key, len(prefix), prefix.salt)
        return self.lend_node(match.node) if match.depth else None

    def lend_node(self, node: Node) -> Loan:
        """Lock the state at `node`, if it has one, and the KV up to there."""
        tree = self.pools.cache.tree
        state = StateRef(node.snapshot or 0, tree.path_pages(node), node.depth)
        loan = Loan(state, node)
        if self.canary is not None:
            self.canary.lent(*tree.path_key(node), state.slot, state.pages)
        self.pools.cache.lock(node)
        self._loans.add(loan)
        return loan

    def give_back(self, loan: Loan) -> None:
        """Unlock a loan that nobody reads any more."""
        self._loans.remove(loan)
        self.pools.cache.unlock(loan.node)

    def remove(self, salts: bytes, requests: Iterable[Request]) -> bool:
        """Remove what is cached under salts that begin so, from all memories and from files; return
        true if nothing of it is left. Nothing is removed while a reservation has such a salt, or
        one of `requests`, those of the engine.
        """
        held = [*self.reservations, *self.reservations.quarantined]
        users = [each.cache_salt for each in held]
        users += [request.spec.cache_salt for request in requests]
        return not any(salt.startswith(salts) for salt in users) and self.pools.flush(salts)

    def keep(self, reservation: Reservation, token_ids: Sequence[int]) -> None:
        """Give the cache the prefix `token_ids`, which a peer has written into the reservation,
        under the reservation's salt. Raises RequestError; then the reservation stands as it was.
        """
        self.reservations.check_open(reservation)
        tokens = reservation.state.tokens
        if len(token_ids) != tokens or tokens % self.pools.page_size:
            raise RequestError(
                f"a cached prefix needs whole pages of {self.pools.page_size} tokens, and all of "
                f"the {tokens} tokens that were reserved for; got {len(token_ids)}"
            )
        if self.canary is not None:
            self.canary.kept(token_ids, reservation)
        self.reservations.keep(reservation, token_key(token_ids))
