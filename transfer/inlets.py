"""What a decode rank offers to one prefill worker, and what was chosen of it."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from baton.transfer.errors import ChannelError

log = logging.getLogger(__name__)


class Intake(Protocol):
    """One channel's receiving end of one peer's writes."""

    @property
    def endpoint(self) -> bytes: ...

    @property
    def one_sided(self) -> bool: ...

    def chosen(self) -> None:
        """The writer writes by this one."""
        ...

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None: ...

    async def close(self) -> None:
        """What ties the peer to this worker's memory is torn down when it returns."""
        ...


class IntakeSource(Protocol):
    """One channel, as the rank has it."""

    @property
    def name(self) -> str: ...

    async def open(self) -> Intake: ...


class OfferedInlet:
    """An `Inlet`: every channel until one is chosen, that one from then on."""

    def __init__(self, intakes: Mapping[str, Intake]) -> None:
        self._intakes = dict(intakes)
        self._closing: list[asyncio.Future[None]] = []

    @property
    def offers(self) -> dict[str, bytes]:
        return {name: intake.endpoint for name, intake in self._intakes.items()}

    @property
    def one_sided(self) -> bool:
        return any(intake.one_sided for intake in self._intakes.values())

    def chosen(self, channel: str) -> None:
        for name in [name for name in self._intakes if name != channel]:
            self._drop(name)
        for intake in self._intakes.values():
            intake.chosen()

    def bar(self, channel: str) -> None:
        if channel in self._intakes:
            self._drop(channel)

    def moving(self, ticket_id: int, generation: int, under_way: bool, segments: int) -> None:
        for intake in self._intakes.values():
            intake.moving(ticket_id, generation, under_way, segments)

    async def close(self) -> None:
        intakes = self._intakes.values()
        await asyncio.gather(*self._closing, *(intake.close() for intake in intakes))

    def _drop(self, channel: str) -> None:
        """Nothing was written by it: no hand-off begins before the choice."""
        self._closing.append(asyncio.ensure_future(self._intakes.pop(channel).close()))


class Inlets:
    """Makes an inlet a stream."""

    def __init__(self, sources: Sequence[IntakeSource]) -> None:
        """sources: at least one."""
        self._sources = tuple(sources)

    async def open(self) -> OfferedInlet:
        """All that can be opened now. Raises ChannelError when none can."""
        intakes: dict[str, Intake] = {}
        errors: list[str] = []
        for source in self._sources:
            try:
                intakes[source.name] = await source.open()
            except ChannelError as error:
                errors.append(f"{source.name}: {error}")
                log.warning("no %s channel: %s", source.name, error)
        if not intakes:
            raise ChannelError(f"no channel can be offered: {'; '.join(errors)}")
        return OfferedInlet(intakes)
