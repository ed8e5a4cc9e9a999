"""Cancellation of work for a client that has disconnected."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from baton.core.error_codes import ErrorCode
from baton.core.errors import BatonError
from baton.core.supervised import child

T = TypeVar("T")


class ClientGone(BatonError):
    """The client closed its connection, so nobody reads the answer."""

    code = ErrorCode.CANCELLED


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. If the client disconnects first, cancel it and raise
    `ClientGone`.

    The request's body must have been read before, so that `receive` returns the disconnect
    next.
    """
    task = child(work)
    watch = child(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        # Clean-up, such as telling the backend, ends before the server forgets the request.
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
