"""The writer's end of NIXL: one agent a peer, writes posted without waiting."""

import asyncio
import itertools
from collections import deque
from dataclasses import dataclass

from baton.proto import handoff_pb2
from baton.transfer import frames
from baton.transfer.channel import OnBytes, OnMoving
from baton.transfer.errors import ChannelError
from baton.transfer.nixl_agent import NixlAgent
from baton.transfer.nixl_plan import cut
from baton.transfer.nixl_reach import Reach
from baton.transfer.nixl_writing import NixlWriting, Post
from baton.transfer.poller import Poller, Work
from baton.transfer.regions import EngineMemory, Holder
from baton.transfer.segments import nbytes
from baton.transfer.tickets import Claim
from baton.transfer.writer_lease import WriterLease

NIXL = "nixl"
SEGMENT_BYTES = 64 << 20
"""Large: each post costs a fraction of a millisecond beside what it moves."""
CHECKED_BYTES = 8 << 20
"""With checksums: the receiver checks one segment while the next moves."""
POSTS = 4
"""In flight at once, a peer."""


@dataclass(frozen=True)
class NixlSettings:
    """What all of one worker's agents share."""

    name: str  # unique over workers and their restarts
    memory: EngineMemory
    poller: Poller
    verify: bool
    lease_s: float
    on_bytes: OnBytes


class NixlOutlet:
    name = NIXL

    def __init__(self, settings: NixlSettings) -> None:
        self._settings = settings
        self._numbers = itertools.count(1)

    async def connect(self, endpoint: bytes) -> "NixlConnection":
        there = handoff_pb2.NixlEndpoint.FromString(endpoint)
        name = f"{self._settings.name}/w{next(self._numbers)}"
        reach = await asyncio.to_thread(Reach, name, self._settings.memory, there)
        return NixlConnection(reach, self._settings)


class NixlConnection:
    """Posts on the poller's thread; all else happens on the loop's."""

    def __init__(self, reach: Reach, settings: NixlSettings) -> None:
        self._reach: Reach | None = reach
        self._settings = settings
        self.segment_bytes = CHECKED_BYTES if settings.verify else SEGMENT_BYTES
        self._lease = WriterLease(settings.lease_s)
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._error: ChannelError | None = None
        self._waiting: deque[Post] = deque()
        self._posted: dict[int, Post] = {}  # by the write's number; the poller's thread has it

    def open(self, claim: Claim, target: Holder, on_moving: OnMoving) -> NixlWriting:
        pages = self._settings.memory.pages
        return NixlWriting(
            self,
            claim,
            target,
            on_moving,
            self._lease,
            self._settings.lease_s,
            lambda segment: nbytes(segment, pages),
        )

    def heard(self) -> None:
        self._lease.heard()

    async def lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        await self._give_up(ChannelError("the connection was closed"))

    def post(self, post: Post) -> None:
        """Soon, in order; the post's writing hears of its end."""
        if self._error is not None:
            post.writing.ended(post, self._error)
            return
        self._waiting.append(post)
        self._settings.poller.wake(self)

    def sever(self, why: ChannelError) -> None:
        """Everything under way here ends with `why`, within a fraction of a second."""
        self._settings.poller.call(lambda: self._drop(why))

    def poll(self) -> Work:
        """On the poller's thread."""
        if self._reach is None:
            return Work.NONE
        try:
            moved = self._reap(self._reach.agent)
            while self._waiting and len(self._posted) < POSTS:
                self._post_next(self._reach)
                moved = True
        except ChannelError as error:
            self._drop(error)
            return Work.NONE
        if moved:
            return Work.MOVING
        return Work.WAITING if self._posted else Work.NONE

    def _reap(self, agent: NixlAgent) -> bool:
        done = [number for number in self._posted if agent.done(number)]
        for number in done:
            self._end(self._posted.pop(number), None)
        return bool(done)

    def _post_next(self, reach: Reach) -> None:
        post = self._waiting.popleft()
        refusal = post.writing.refusal()
        if refusal is not None:
            self._end(post, refusal)
            return
        memory, segment = self._settings.memory, post.segment
        checksum = None
        if self._settings.verify:
            checksum = frames.checksum_of(segment, memory.read(segment, post.source))
        note = frames.encode_note(post.writing.claim, frames.Header(segment, checksum))
        part = cut(segment, memory)
        try:
            number = reach.post(part, post.source, post.writing.target, note)
        except ChannelError as error:
            self._end(post, error)
            raise
        self._posted[number] = post
        self._settings.on_bytes(segment.kind, part.nbytes + len(note))

    def _end(self, post: Post, error: ChannelError | None) -> None:
        self._loop.call_soon_threadsafe(post.writing.ended, post, error)

    def _drop(self, why: ChannelError) -> None:
        """On the poller's thread: the agent goes first, then those who wait are told."""
        reach, self._reach = self._reach, None
        if reach is None:
            return
        reach.agent.close()
        posts = list(self._posted.values())
        self._posted.clear()
        self._loop.call_soon_threadsafe(self._dropped, posts, why)

    def _dropped(self, posts: list[Post], why: ChannelError) -> None:
        """Those who wait are the loop's to tell: it adds to them meanwhile."""
        self._error = why
        for post in (*posts, *self._waiting):
            post.writing.ended(post, why)
        self._waiting.clear()
        self._lost.set()

    async def _give_up(self, why: ChannelError) -> None:
        self.sever(why)
        await self._lost.wait()
