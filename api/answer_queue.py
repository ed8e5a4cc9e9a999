"""The events of one answer, between who writes them and the handler that reads them."""

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic

from baton.api.admission.defaults import MAX_JOINED_TOKENS
from baton.api.backend import TokenEvent
from baton.core.errors import ApiError
from baton.core.finish import Finished

PAUSE = 2.0
"""The pause after readers were woken, as a multiple of the time that the event loop was busy with
them. Streams so take at most a third of a loop that is behind."""


class StreamPace:
    """The moments at which the readers of all answers of one event loop are woken.

    Readers are woken together. While the loop keeps up, that is at once. The longer they keep it
    busy, the longer is the pause until others are woken, so that the tokens of several steps are
    joined into one event, which costs as much as one token.
    """

    def __init__(self, interval: int = 1, clock: Callable[[], float] = monotonic) -> None:
        """interval: the tokens that a stream gets at once at least, but for its first and last.
        clock: in seconds."""
        self.interval = interval
        self._clock = clock
        self._due: list[asyncio.Future[None]] = []
        self._resumes = 0.0  # when the pause is over, on `clock`
        self._waking = False

    def wake(self, reader: asyncio.Future[None]) -> None:
        """Wake a reader with the others, once the pause is over."""
        self._due.append(reader)
        if not self._waking:
            self._waking = True
            pause = self._resumes - self._clock()
            asyncio.get_running_loop().call_later(max(pause, 0.0), self._wake_all)

    def _wake_all(self) -> None:
        due, self._due, self._waking = self._due, [], False
        for reader in due:
            if not reader.done():
                reader.set_result(None)
        # It is called behind the readers that were woken just now.
        asyncio.get_running_loop().call_soon(self._pause, self._clock())

    def _pause(self, woken: float) -> None:
        now = self._clock()
        self._resumes = now + PAUSE * (now - woken)


class AnswerQueue:
    """The events of one answer. One task reads them, on the event loop on which they are put.

    Tokens that the reader has not taken are joined into fewer events, so that it catches up and
    the memory is bounded by the answer's length.
    """

    def __init__(self, pace: StreamPace) -> None:
        self._pace = pace
        self._events: deque[TokenEvent | Finished | ApiError] = deque()
        self._tokens = 0  # in `_events`
        self._wanted = 0  # tokens that the reader waits for; 0: the first was not read yet
        self._over = False  # the last event was put
        self._reader: asyncio.Future[None] | None = None  # the reader waits for it
        self._paced = False  # `_pace` will wake the reader

    async def next(self) -> TokenEvent | Finished:
        """Wait for the next event. Raises the `ApiError` that ended the answer."""
        while not (self._events and (self._over or self._tokens >= self._wanted)):
            self._reader, self._paced = asyncio.get_running_loop().create_future(), False
            await self._reader
        event = self._events.popleft()
        if isinstance(event, ApiError):
            raise event
        if isinstance(event, TokenEvent) and event.token_ids:
            self._wanted = self._pace.interval
            self._tokens -= len(event.token_ids)
        return event

    def put(self, event: TokenEvent) -> None:
        """Add the next part of the answer."""
        last = self._events[-1] if self._events else None
        self._tokens += len(event.token_ids)
        if (
            isinstance(last, TokenEvent)
            and len(last.token_ids) < MAX_JOINED_TOKENS
            and last.prompt_logprobs is event.prompt_logprobs is None
        ):
            ids, logprobs = last.token_ids + event.token_ids, last.logprobs + event.logprobs
            self._events[-1] = TokenEvent(last.first_index, ids, logprobs)
        else:
            self._events.append(event)
        self._wake()

    def end(self, event: Finished | ApiError) -> None:
        """Add the last event."""
        self._over = True
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        reader = self._reader
        if reader is None or reader.done():
            return
        if self._over or not self._wanted:
            reader.set_result(None)
        elif not self._paced and self._tokens >= self._wanted:
            self._paced = True
            self._pace.wake(reader)
