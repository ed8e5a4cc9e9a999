"""The gRPC calls of clients that are being answered, and how many there may be."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from baton.api.access.client_limits import ClientLimits
from baton.api.errors import too_many
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


class OpenCalls:
    """The calls in all, and of each address and key."""

    def __init__(self, limits: ClientLimits) -> None:
        self._most = limits.grpc_streams
        self._most_of_holder = limits.grpc_streams_of_client
        self._open = 0
        self._of: Counter[str] = Counter()  # by holder

    def __len__(self) -> int:
        return self._open

    def refusal(self, holders: Collection[str]) -> ApiError | None:
        """Return the error for one call more, or None if it may begin. holders: the address and
        the key that it would count for, as "address 10.0.0.7"."""
        if self._open >= self._most:
            found, most = f"{self._open} calls are open", self._most
        else:
            full = next((each for each in holders if self._of[each] >= self._most_of_holder), None)
            if full is None:
                return None
            kind, most = full.partition(" ")[0], self._most_of_holder
            found = f"this {kind} has {self._of[full]} calls open"
        return too_many(ErrorCode.OVERLOADED, found, f"{most} calls")

    @contextmanager
    def counted(self, holders: Collection[str]) -> Iterator[None]:
        self._open += 1
        self._of.update(holders)
        try:
            yield
        finally:
            self._open -= 1
            self._of.subtract(holders)
            for each in holders:
                if not self._of[each]:
                    del self._of[each]
