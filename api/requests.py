"""Backend requests from what a client asked for."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton.api.backend import GenerateRequest
from baton.api.errors import invalid
from baton.api.sampling import SamplingParams, nth_seed

MAX_PRIORITY = 1000


@dataclass(frozen=True)
class RequestLabels:
    """What rides along with every answer of one call. Raises `ApiError`."""

    client_id: str | None = None
    priority: int = 0
    routed_dp_rank: int | None = None

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            allowed = f"{-MAX_PRIORITY} to {MAX_PRIORITY}"
            raise invalid(
                "priority",
                f"priority is {self.priority}; expected {allowed}, where the larger goes first",
                expected=allowed,
                actual=self.priority,
            )


def new_request_id() -> str:
    """128 random bits in hex."""
    return secrets.token_hex(16)


def make_requests(
    prompt_ids: Sequence[int], sampling: SamplingParams, n: int, labels: RequestLabels
) -> list[GenerateRequest]:
    """`n` answers to one prompt: the same but for id and seed, so that later ones hit the cache."""
    return [
        GenerateRequest(
            request_id=new_request_id(),
            prompt_ids=tuple(prompt_ids),
            sampling=replace(sampling, seed=nth_seed(sampling.seed, i)),
            client_id=labels.client_id,
            priority=labels.priority,
            routed_dp_rank=labels.routed_dp_rank,
        )
        for i in range(n)
    ]
