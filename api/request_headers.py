"""The headers of one HTTP request."""

from collections.abc import Set
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

_HEADERS = "baton.headers"
"""The place of an ASGI scope for its `RequestHeaders`."""


class RequestHeaders(Headers):
    """Headers in a table. Starlette's are a list, which is gone through for each header that is
    looked for, a dozen in a request.
    """

    def __init__(self, given: list[tuple[bytes, bytes]]) -> None:
        """given: names in lower case, as ASGI has them."""
        super().__init__(raw=given)
        self.given = given
        self._first = dict(reversed(given))

    def __getitem__(self, key: str) -> str:
        return self._first[key.lower().encode("latin-1")].decode("latin-1")

    def __contains__(self, key: Any) -> bool:
        return key.lower().encode("latin-1") in self._first

    def get(self, key: str, default: Any = None) -> Any:
        """Return the first value of a header."""
        found = self._first.get(key.lower().encode("latin-1"))
        return default if found is None else found.decode("latin-1")

    def lacks(self, names: Set[bytes]) -> bool:
        """Return True if the request has none of these headers, named in lower case."""
        return self._first.keys().isdisjoint(names)

    def getlist(self, key: str) -> list[str]:
        """Return all values of a header."""
        name = key.lower().encode("latin-1")
        if name not in self._first:
            return []
        return [value.decode("latin-1") for other, value in self.given if other == name]


def headers_in(scope: Scope) -> RequestHeaders:
    """Return the headers that an ASGI scope has now."""
    found: RequestHeaders | None = scope.get(_HEADERS)
    if found is None or found.given is not scope["headers"]:
        given = scope["headers"] = list(scope["headers"])
        found = scope[_HEADERS] = RequestHeaders(given)
    return found
