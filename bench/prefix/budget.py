"""A memory budget for cached prefixes, and its division between snapshots and pages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrefixBytes:
    """The bytes of a cached prefix: `state` for its snapshot, `kv` for each token."""

    state: int
    kv: int

    def of(self, tokens: int) -> int:
        """Return the bytes of a prefix of `tokens` tokens with one snapshot."""
        return self.state + self.kv * tokens


@dataclass(frozen=True)
class CacheBudget:
    """The sizes of the cache's pools. Pages and snapshots have one each, as on a worker."""

    pages: int
    snapshots: int

    def times(self, workers: int) -> "CacheBudget":
        """Return the budget of so many workers together."""
        return CacheBudget(self.pages * workers, self.snapshots * workers)

    @classmethod
    def divided(
        cls, nbytes: float, ratio: float, page_size: int, sizes: PrefixBytes
    ) -> "CacheBudget":
        """Divide `nbytes`. ratio: bytes of snapshots by bytes of pages."""
        for_pages = nbytes / (1 + ratio)
        return cls(
            int(for_pages // (sizes.kv * page_size)), int((nbytes - for_pages) // sizes.state)
        )
