"""The objectives that clients are promised, and the limits beyond which alerts fire."""

from dataclasses import dataclass

from baton.router.metric_factory import BUCKETS


@dataclass(frozen=True)
class Objectives:
    """The numbers of the rules. Raises ValueError for one that no bucket of the histograms has."""

    ttft_s: float = 1.0  # time to the first token; a bucket of baton_router_ttft_seconds
    itl_s: float = 0.1  # between two tokens; a bucket of baton_router_itl_seconds
    share: float = 0.99  # of first tokens, and of the others, that come in time
    transfer_s: float = 0.5  # the 95th percentile of a hand-off's transfer after its first token
    failed_share: float = 0.05  # of hand-offs
    busy_share: float = 0.9  # of slots or pages, by what cannot be evicted
    certificate_days: float = 14.0

    def __post_init__(self) -> None:
        for seconds in (self.ttft_s, self.itl_s):
            if seconds not in BUCKETS:
                raise ValueError(f"an objective of {seconds} s is no bucket; choose from {BUCKETS}")
        if not 0.0 < self.share < 1.0:
            raise ValueError(f"a share of {self.share} leaves nothing to burn; choose below 1")
