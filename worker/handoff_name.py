"""The fields that every message about a hand-off carries."""

from typing import TypedDict


class HandoffName(TypedDict):
    """The name of one hand-off. attempt: the rank's count of hand-offs of the request."""

    request_id: str
    attempt: int
