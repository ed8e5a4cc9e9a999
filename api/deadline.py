"""The time that a client gives its request."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Self

from baton.api.errors import invalid
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError


@dataclass(frozen=True)
class Deadline:
    """The moment by which a request must have ended."""

    timeout_s: float  # from the request's arrival, as the client said it
    at: float  # on `time.monotonic`

    @classmethod
    def of(
        cls, timeout_s: float | None, param: str = "timeout", arrived: float | None = None
    ) -> Self | None:
        """Return the deadline of a request; None if it has none.

        arrived: when it came, on `time.monotonic`; None: now. Raises INVALID_REQUEST that names
        `param` for what is no time.
        """
        if timeout_s is None:
            return None
        if not 0 < timeout_s < math.inf:
            raise invalid(
                param,
                f"{param} is {timeout_s:g}; expected a number of seconds above 0",
                expected="more than 0",
                actual=timeout_s,
            )
        return cls(timeout_s, (time.monotonic() if arrived is None else arrived) + timeout_s)

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(self.at - time.monotonic(), 0.0)

    def passed(self) -> ApiError:
        """Return the error of a request whose time is over."""
        return ApiError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"the request was not complete within its timeout of {self.timeout_s:g} s",
            param="timeout",
        )


def within(deadline: Deadline | None) -> AbstractAsyncContextManager[None]:
    """Return a context that cancels what is inside at the deadline, and raises DEADLINE_EXCEEDED
    then."""
    return nullcontext() if deadline is None else _until(deadline)


@asynccontextmanager
async def _until(deadline: Deadline) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline.left_s):
            yield
    except TimeoutError as error:
        raise deadline.passed() from error
