"""The queue of hand-offs that wait for this rank's memory."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

from baton.core.errors import RequestError
from baton.core.turns import Turn, turn_of
from baton.engine.engine import Engine
from baton.engine.request.request import Reservation
from baton.worker.engine_port import EnginePort

RETRY_S = 0.05
"""Between two attempts while any request waits: not every release of memory is reported here."""


@dataclass(frozen=True)
class GrantRequest:
    """One hand-off that waits for memory."""

    engine_id: str
    tokens: int
    key: bytes  # `token_key` of those tokens: made once, since every attempt looks it up
    cache_salt: bytes = field(repr=False)  # as in `RequestSpec`
    priority: int  # the larger goes first, see `turn_of`
    on_granted: Callable[[Reservation], None]
    on_refused: Callable[[RequestError], None]


class Grants:
    """Reserves memory for waiting hand-offs, by priority and age.

    One that does not fit now waits, and those behind it that fit pass it. It waits without a
    deadline of its own: it is withdrawn when its request or its stream ends.
    """

    def __init__(self, port: EnginePort) -> None:
        self._port = port
        self._waiting: dict[str, tuple[Turn, GrantRequest]] = {}  # by engine id
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    def ask(self, asked: GrantRequest) -> None:
        """Queue the request. Its callback is called later, on the asyncio thread."""
        self._waiting[asked.engine_id] = turn_of(next(self._numbers), asked.priority), asked
        self._changed.set()

    def withdraw(self, engine_id: str) -> None:
        """Drop a request; neither of its callbacks is called then. Idempotent."""
        self._waiting.pop(engine_id, None)

    def memory_freed(self) -> None:
        """Try all waiting requests soon."""
        self._changed.set()

    def give_back(self, reservation: Reservation) -> None:
        """Free reserved memory. The caller makes sure that nobody writes into it any more."""
        self._port.post(lambda engine: engine.reservations.abandon(reservation), "abandon")
        self._changed.set()

    async def run(self) -> None:
        """Serve the queue until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._waiting else None):
                    await self._changed.wait()
            self._changed.clear()
            if self._waiting:
                await self._try_all()

    async def _try_all(self) -> None:
        queue = tuple(asked for _, asked in sorted(self._waiting.values(), key=itemgetter(0)))
        for asked, answer in await self._port.call(lambda engine: _reserve_all(engine, queue)):
            still_waits = self._waits(asked)
            if isinstance(answer, Reservation):
                if still_waits:
                    self.withdraw(asked.engine_id)
                    asked.on_granted(answer)
                else:
                    self.give_back(answer)
            elif answer is not None and still_waits:
                self.withdraw(asked.engine_id)
                asked.on_refused(answer)

    def _waits(self, asked: GrantRequest) -> bool:
        _, waiting = self._waiting.get(asked.engine_id, (None, None))
        return waiting is asked


def _reserve_all(
    engine: Engine, queue: tuple[GrantRequest, ...]
) -> list[tuple[GrantRequest, Reservation | RequestError | None]]:
    """Try to reserve memory for each, on the engine's thread. None: no room now."""
    answers: list[tuple[GrantRequest, Reservation | RequestError | None]] = []
    for asked in queue:
        try:
            reserved = engine.reserve(
                asked.engine_id, asked.tokens, asked.key, asked.priority, asked.cache_salt
            )
            answers.append((asked, reserved))
        except RequestError as error:
            answers.append((asked, error))
    return answers
