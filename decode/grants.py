"""Who gets the rank's memory for a hand-off: each in turn, but nobody blocks."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from baton.engine.engine import Engine
from baton.engine.errors import RequestError
from baton.engine.request import Reservation
from baton.engine.turns import Turn, turn_of
from baton.worker.engine_port import EnginePort

RETRY_S = 0.05


@dataclass(frozen=True)
class Want:
    """One hand-off that waits for memory."""

    engine_id: str
    tokens: int
    key: bytes  # those tokens, as the prefix cache knows them: made once, asked for often
    priority: int  # the larger goes first, see `turn_of`
    granted: Callable[[Reservation], None]
    refused: Callable[[RequestError], None]


class Grants:
    """A request that does not fit now waits, and those behind it that do fit pass it.

    A want waits for memory without a deadline: it ends with its request, or with its stream.
    """

    def __init__(self, port: EnginePort) -> None:
        self._port = port
        self._wants: dict[str, tuple[Turn, Want]] = {}  # by engine id
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    def want(self, want: Want) -> None:
        """`granted` or `refused` is called later, on the asyncio thread, unless withdrawn."""
        self._wants[want.engine_id] = turn_of(next(self._numbers), want.priority), want
        self._changed.set()

    def withdraw(self, engine_id: str) -> None:
        self._wants.pop(engine_id, None)

    def memory_freed(self) -> None:
        """Try again."""
        self._changed.set()

    def give_back(self, reservation: Reservation) -> None:
        """The caller makes sure that nobody writes into it any more."""
        self._port.post(lambda engine: engine.abandon(reservation), "abandon")
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # Not all that frees memory is heard of here, so those who wait are tried again.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self._wants else None):
                    await self._changed.wait()
            self._changed.clear()
            if self._wants:
                await self._try_all()

    async def _try_all(self) -> None:
        wants = tuple(want for _, want in sorted(self._wants.values(), key=itemgetter(0)))
        for want, answer in await self._port.call(lambda engine: _reserve_all(engine, wants)):
            wanted = self._waits(want)
            if isinstance(answer, Reservation):
                if wanted:
                    self.withdraw(want.engine_id)
                    want.granted(answer)
                else:
                    self.give_back(answer)
            elif answer is not None and wanted:
                self.withdraw(want.engine_id)
                want.refused(answer)

    def _waits(self, want: Want) -> bool:
        _, waiting = self._wants.get(want.engine_id, (None, None))
        return waiting is want


def _reserve_all(
    engine: Engine, wants: tuple[Want, ...]
) -> list[tuple[Want, Reservation | RequestError | None]]:
    """On the engine's thread. None: no room now."""
    answers: list[tuple[Want, Reservation | RequestError | None]] = []
    for want in wants:
        try:
            reserved = engine.reserve(want.engine_id, want.tokens, want.key, want.priority)
            answers.append((want, reserved))
        except RequestError as error:
            answers.append((want, error))
    return answers
