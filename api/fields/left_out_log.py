"""The log of the names of fields that are left out of requests."""

import logging
from collections import Counter
from collections.abc import Iterable

log = logging.getLogger(__name__)

_MOST = 4096
_OF_CLIENT = 64


class LeftOutLog:
    """Names that are logged, each once.

    Clients make up any number of names. So each key has a share of the log, or each address where
    there are no keys, and nobody keeps the names of others out of it.
    """

    def __init__(self, most: int = _MOST, of_client: int = _OF_CLIENT) -> None:
        self._most = most
        self._of_client = of_client
        self._logged: set[str] = set()
        self._of: Counter[str] = Counter()  # those of each client

    def add(self, names: Iterable[str], client: str) -> None:
        """Log what is new, while the client has a share left. client: its key or its address."""
        for name in names:
            if name in self._logged:
                continue
            if self._of[client] >= self._of_client or len(self._logged) >= self._most:
                return
            self._logged.add(name)
            self._of[client] += 1
            log.warning("requests have a field that is not used here and is left out: %r", name)
