"""What can go wrong in the router besides what clients meet (`ApiError`).

RouterError
├── ConfigError   an option that cannot work; raised at start
├── Refused       a worker may not join; carries the `Error` that it is told
└── RankLost      a decode rank went away, with the reason
"""

from baton.api.errors import ApiError


class RouterError(Exception):
    """The root: catch this to catch all of them."""


class ConfigError(RouterError):
    """An option that cannot work: says which, and what would."""


class Refused(RouterError):
    """A worker may not join, or join again. `error` goes back to it."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class RankLost(RouterError):
    """The session with a decode rank is over; the message says why."""
