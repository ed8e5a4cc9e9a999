"""The small hand-offs to one peer: those that are there together leave as one message."""

import asyncio
from collections.abc import Callable
from typing import Any

from grpc import StatusCode, aio

from baton.core.supervised import child
from baton.transfer.channels import frames
from baton.transfer.channels.grpc.whole_write import WholeWriteOperation
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.errors import ChannelError, FrameError

JOINED_BYTES = 4 << 20
"""Bytes of a message to which no further hand-off is added: more would hold both event loops for
long."""

Rpc = Callable[..., "aio.UnaryUnaryCall[bytes, bytes]"]
"""`StateChannel/WriteWhole` of one connection."""


class WholeWrites:
    """Sends hand-offs that are all there. A step completes several, and a call costs both sides as
    much for one as for all of them."""

    def __init__(self, rpc: Rpc, address: str, lease_s: float, link: LinkRate) -> None:
        self._rpc = rpc
        self._address = address
        self._lease_s = lease_s
        self._link = link
        self._waiting: list[WholeWriteOperation] = []
        self._calls: set[asyncio.Task[Any]] = set()

    def put(self, writing: WholeWriteOperation) -> None:
        """Let `writing` leave behind what is ready to run on this loop, which may add others."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._leave)
        self._waiting.append(writing)

    def _leave(self) -> None:
        waiting = [each for each in self._waiting if not each.cancelled]
        self._waiting = []
        while waiting:
            together, nbytes = 0, 0
            while nbytes < JOINED_BYTES and together < len(waiting):
                nbytes += waiting[together].nbytes
                together += 1
            call = child(self._send(waiting[:together]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            waiting = waiting[together:]

    async def _send(self, together: list[WholeWriteOperation]) -> None:
        """Send one message and tell its hand-offs what became of each."""
        arrived = 0
        self._link.begin()
        try:
            message = frames.encode_several(each.parts for each in together)
            for each in together:
                each.left()
            replies = frames.decode_several(await self._rpc(message, timeout=self._lease_s))
            if len(replies) != len(together):
                raise FrameError("a reply to writes", f"{len(together)} parts", str(len(replies)))
            arrived = len(message)
            for writing, reply in zip(together, replies, strict=True):
                writing.replied(bytes(reply))
        except (Exception, asyncio.CancelledError) as error:  # each waits for a word
            for writing in together:
                writing.failed(ChannelError(self._why(error)))
        finally:
            self._link.end(arrived)

    def _why(self, error: BaseException) -> str:
        if not isinstance(error, aio.AioRpcError):
            return f"the connection to {self._address} broke: {error or 'it was closed'}"
        if error.code() is StatusCode.DEADLINE_EXCEEDED:
            return (
                f"{self._address} took no bytes for {self._lease_s:g} s; check the network between "
                "the two workers"
            )
        return f"the connection to {self._address} broke: {error.details()}"
