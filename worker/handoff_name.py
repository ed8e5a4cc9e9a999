"""What every message about a hand-off carries."""

from typing import TypedDict


class HandoffName(TypedDict):
    """attempt: of this hand-off, not of the whole request: the rank counts them on."""

    request_id: str
    attempt: int
