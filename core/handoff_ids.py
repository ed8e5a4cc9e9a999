"""The names of hand-offs and of tickets."""

from typing import NamedTuple


class HandoffId(NamedTuple):
    """The name of one hand-off of a request."""

    request_id: str
    attempt: int  # the rank's own count of hand-offs of the request

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"


class TicketId(NamedTuple):
    """The name of one ticket of a worker."""

    number: int  # from 1 on; used again once the ticket is closed
    generation: int  # never used twice, so what comes too late names no newer ticket
