"""The life of one request at this router."""

from collections.abc import Collection
from dataclasses import dataclass, field

from baton.core.finish import Timings
from baton.proto.common_pb2 import PromptSource
from baton.router.placement.assignment import Assignment
from baton.text.prefix_digest import PromptPrefixes

RUNNING, LOST, LEFT, RETURNED = "running", "lost", "left", "returned"
"""Ends of attempts that were not their request's: LOST and LEFT say what became of the rank,
RETURNED that the router took the request back."""


@dataclass(eq=False, slots=True)
class PlacedAttempt:
    """One placement of a request."""

    number: int
    placed_s: float  # on the router's clock, as all times here
    assignment: Assignment
    ended_s: float | None = None
    end: str = RUNNING  # the request's outcome, or as above
    why: str = ""  # of an end before the answer's

    def over(self, now_s: float, end: str, why: str = "") -> None:
        """Note the attempt's end, unless it has ended."""
        if self.ended_s is None:
            self.ended_s, self.end, self.why = now_s, end, why


@dataclass(frozen=True)
class RequestHistory:
    """One request, running or over, without its text."""

    request_id: str
    client_id: str | None
    call_id: str | None  # X-Request-Id
    owner: str | None  # the name of its API key
    prompt: PromptPrefixes = field(repr=False)
    arrived_s: float
    attempts: tuple[PlacedAttempt, ...]
    outcome: str  # empty: it is not over
    output_tokens: int
    timings: Timings | None = None  # None: the answer has not finished
    source: PromptSource | None = None  # None: no worker has said it

    def is_meant(self, names: Collection[str], owner: str | None) -> bool:
        """Return True if one of `names` means this request, and `owner` may see it.

        owner: the name of an API key; None: everybody's.
        """
        mine = (self.request_id, self.client_id, self.call_id)
        return any(name in names for name in mine) and owner in (None, self.owner)
