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
    task = asyncio.current_task()
    assert task is not None
    before, gone = task.cancelling(), False

    def leave(watch: asyncio.Task[None]) -> None:
        nonlocal gone
        gone = True
        task.cancel()

    watch = child(_disconnect(receive))
    watch.add_done_callback(leave)
    try:
        return await work  # what it cleans up, such as telling the backend, ends before this does
    except BaseException:
        if gone and task.uncancel() <= before:
            raise ClientGone from None
        raise
    finally:
        watch.remove_done_callback(leave)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
