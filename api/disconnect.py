"""Cancellation of work for a client that has disconnected."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.core.supervised import child

T = TypeVar("T")

DEPARTURE = "baton.departure"
"""The key of a server's `Departure` in `extensions` of an ASGI scope."""


class ClientGone(BatonError):
    """The client closed its connection, so nobody reads the answer."""

    code = ErrorCode.CANCELLED


class Departure(Protocol):
    """A server's word that the client of one request has disconnected.

    ASGI says it by a message, for which a task has to wait beside the work.
    """

    def watch(self, leave: Callable[[], None]) -> None:
        """Call `leave`, outside of any task, once the client has disconnected."""
        ...

    async def ignore(self) -> None:
        """Call nobody any more."""
        ...


async def unless_disconnected(scope: Scope, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel it and raise
    `ClientGone`.

    The request's body must have been read before, so that `receive` returns the disconnect
    next.
    """
    task = asyncio.current_task()
    assert task is not None
    before, gone = task.cancelling(), False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    departure: Departure = scope.get("extensions", {}).get(DEPARTURE) or _Message(receive)
    departure.watch(leave)
    try:
        return await work  # what it cleans up, such as telling the backend, ends before this does
    except BaseException:
        if gone and task.uncancel() <= before:
            raise ClientGone from None
        raise
    finally:
        await departure.ignore()


class _Message:
    """The message `http.disconnect` as a `Departure`."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._leave: Callable[[], None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    def watch(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._waiting = child(self._wait())
        self._waiting.add_done_callback(self._over)

    async def ignore(self) -> None:
        self._leave = None
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)

    def _over(self, _: asyncio.Task[None]) -> None:
        if self._leave is not None:
            self._leave()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
