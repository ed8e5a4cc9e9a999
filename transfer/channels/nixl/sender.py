"""The writing end of NIXL: one agent for each peer, and writes posted without waiting."""

import asyncio
from collections import deque

from baton.core.state_ref import StateRef
from baton.transfer.channels import frames
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.ends import OnMoving
from baton.transfer.channels.link_rate import LinkRate
from baton.transfer.channels.nixl.peer import NixlPeer
from baton.transfer.channels.nixl.plan import segment_bytes
from baton.transfer.channels.nixl.write_operation import NixlWriteOperation, Post
from baton.transfer.channels.poller import Work
from baton.transfer.channels.writer_lease import WriterLease
from baton.transfer.errors import ChannelError
from baton.transfer.memory.segments import nbytes
from baton.transfer.tickets import Claim

POSTS = 4
"""Writes in flight at once to one peer."""


class NixlSender:
    """A connection to one receiver. It posts on the poller's thread; all else is on the loop's."""

    def __init__(self, peer: NixlPeer, context: ChannelContext) -> None:
        self._peer: NixlPeer | None = peer
        self._context = context
        self.segment_bytes = peer.segment_limit(segment_bytes(verify=context.verify))
        self._lease = WriterLease(context.lease_s)
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._error: ChannelError | None = None
        self._waiting: deque[Post] = deque()
        self._posted: dict[int, Post] = {}  # by the write's number; the poller's thread has it
        self._ended: list[tuple[Post, ChannelError | None]] = []  # in this poll; so has it these
        self.link = LinkRate()  # so has it this one

    def open(
        self, claim: Claim, target: StateRef, on_moving: OnMoving, size: int | None = None
    ) -> NixlWriteOperation:
        pages = self._context.memory.pages
        return NixlWriteOperation(
            self,
            claim,
            target,
            on_moving,
            self._lease,
            self._context.lease_s,
            lambda segment: nbytes(segment, pages),
        )

    def heard(self) -> None:
        self._lease.heard()

    async def lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        await self._give_up(ChannelError("the connection was closed"))

    def post(self, post: Post) -> None:
        """Queue a post. Posts begin in order; each calls its operation's `ended` once."""
        if self._error is not None:
            post.writing.ended(post, self._error)
            return
        self._waiting.append(post)
        self._context.poller.wake(self)

    def sever(self, why: ChannelError) -> None:
        """End every write with `why`, within a fraction of a second."""
        self._context.poller.call(lambda: self._drop(why))

    def poll(self) -> Work:
        """Collect ended writes and post new ones. Called on the poller's thread."""
        if self._peer is None:
            return Work.NONE
        try:
            return self._advance(self._peer)
        finally:
            self._tell_ended()

    def _advance(self, peer: NixlPeer) -> Work:
        moved = self._reap(peer)
        while self._waiting and len(self._posted) < POSTS and not peer.full:
            self._post_next(peer)
            moved = True
        if moved:
            return Work.MOVING
        return Work.WAITING if self._posted else Work.NONE

    def fail(self, why: ChannelError) -> None:
        """Fail all writes. Called on the poller's thread."""
        self._drop(why)

    def _reap(self, peer: NixlPeer) -> bool:
        done = [number for number in self._posted if peer.agent.done(number)]
        for number in done:
            peer.ended(number)
            post = self._posted.pop(number)
            self.link.end(nbytes(post.segment, self._context.memory.pages))
            self._ended.append((post, None))
        return bool(done)

    def _post_next(self, peer: NixlPeer) -> None:
        """Post the next segment. One that cannot be posted waits, and ends with the others."""
        post = self._waiting[0]
        refusal = post.writing.refusal()
        if refusal is not None:
            self._waiting.popleft()
            self._ended.append((post, refusal))
            return
        memory, segment = self._context.memory, post.segment
        checksum = None
        if self._context.verify:
            checksum = frames.checksum_of(segment, memory.read(segment, post.source))
        note = frames.encode_note(post.writing.claim, frames.Header(segment, checksum))
        number = peer.post(segment, post.source, post.writing.target, note)
        self._posted[number] = self._waiting.popleft()
        self.link.begin()
        self._context.count_sent(segment.kind, peer.wire_bytes(segment) + len(note))

    def _tell_ended(self) -> None:
        """Tell the operations of the posts that ended, in one turn of the loop."""
        if self._ended:
            ended, self._ended = self._ended, []
            self._loop.call_soon_threadsafe(_tell, ended)

    def _drop(self, why: ChannelError) -> None:
        """Destroy the agent, then fail the posts that wait. Called on the poller's thread."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        peer.agent.close()
        posts = list(self._posted.values())
        self._posted.clear()
        self._loop.call_soon_threadsafe(self._dropped, posts, why)

    def _dropped(self, posts: list[Post], why: ChannelError) -> None:
        """Fail every post. Called on the loop's thread, because that thread adds to `_waiting`."""
        self._error = why
        for post in (*posts, *self._waiting):
            post.writing.ended(post, why)
        self._waiting.clear()
        self._lost.set()

    async def _give_up(self, why: ChannelError) -> None:
        self.sever(why)
        await self._lost.wait()


def _tell(ended: list[tuple[Post, ChannelError | None]]) -> None:
    for post, error in ended:
        post.writing.ended(post, error)
