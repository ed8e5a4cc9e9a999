"""The requests that are in the engine, by serial and by id."""

from collections.abc import Iterator

from baton.core.errors import RequestError
from baton.engine.request.request import Request


class RequestTable:
    """A serial is never used twice, so a batch's row cannot find a later request by mistake; the
    same id may come back after its request has left."""

    def __init__(self) -> None:
        self.by_serial: dict[int, Request] = {}  # for those who look many up at once
        self._serials: dict[str, int] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._serials

    def __iter__(self) -> Iterator[Request]:
        return iter(self.by_serial.values())

    def add(self, request: Request) -> None:
        self.by_serial[request.serial] = request
        self._serials[request.request_id] = request.serial

    def remove(self, request: Request) -> None:
        del self.by_serial[request.serial]
        del self._serials[request.request_id]

    def at(self, serial: int) -> Request | None:
        """Return the request with that serial. None when it has left."""
        return self.by_serial.get(serial)

    def named(self, request_id: str) -> Request:
        """Return the request with that id. Raises RequestError when it is not here."""
        if request_id not in self:
            raise RequestError(f"no request {request_id} here", "request_id")
        return self.by_serial[self._serials[request_id]]
