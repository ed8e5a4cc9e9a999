"""Backend requests from clients' requests."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.api.backend import MAX_PRIORITY, GenerateRequest
from baton.api.call_log import CallRecord
from baton.api.deadline import Deadline
from baton.api.errors import invalid
from baton.core.cache_salt import SHARED
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError, RequestError
from baton.core.sampling_params import SamplingParams


@dataclass(frozen=True)
class RequestLabels:
    """The labels that each answer of one call carries. Raises `ApiError`."""

    client_id: str | None = None
    priority: int = 0
    routed_dp_rank: int | None = None
    owner: str | None = None  # the name of the API key, as in `GenerateRequest`
    cache_salt: bytes = field(default=SHARED, repr=False)  # as in `GenerateRequest`
    deadline: Deadline | None = None
    record: CallRecord | None = field(default=None, repr=False)  # as in `GenerateRequest`
    explain: bool = False  # as in `GenerateRequest`

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
    """Return 128 random bits in hexadecimal."""
    return os.urandom(16).hex()


def make_requests(
    prompt_ids: Sequence[int], sampling: SamplingParams, n: int, labels: RequestLabels
) -> list[GenerateRequest]:
    """Return requests for `n` answers to one prompt.

    They differ in id and seed only, so that the later ones hit the prefix cache.
    """
    return [
        GenerateRequest(
            request_id=new_request_id(),
            prompt_ids=tuple(prompt_ids),
            sampling=sampling.with_seed(nth_seed(sampling.seed, i)),
            client_id=labels.client_id,
            priority=labels.priority,
            routed_dp_rank=labels.routed_dp_rank,
            owner=labels.owner,
            cache_salt=labels.cache_salt,
            deadline=labels.deadline,
            record=labels.record,
            explain=labels.explain,
        )
        for i in range(n)
    ]


def nth_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of answer `index` of one request: the given one for the first, then hashes
    of it."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def checked_sampling(names: Mapping[str, str], **given: Any) -> SamplingParams:
    """Return the parameters. Raises `ApiError` with the client's name of the field that is wrong.

    names: a parameter's name in SamplingParams to the client's, where the two differ.
    """
    try:
        return SamplingParams(**given)
    except RequestError as error:
        raise refusal(error, names) from error


def refusal(error: RequestError, names: Mapping[str, str] | None = None) -> ApiError:
    """Return the error that the client is told; `names` as in `checked_sampling`."""
    field = error.field or ""
    param = (names or {}).get(field, field)
    message = str(error) if param.endswith(field) else f"{param}: {error}"
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        message,
        param=param or None,
        expected=error.expected,
        actual=error.actual,
    )
