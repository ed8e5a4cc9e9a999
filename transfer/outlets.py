"""Which channel a prefill worker writes by, chosen once a stream."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from baton.transfer.channel import Connection
from baton.transfer.errors import ChannelError

_NONE: Mapping[str, str] = MappingProxyType({})


class Outlet(Protocol):
    """One channel, as the writer has it."""

    @property
    def name(self) -> str: ...

    async def connect(self, endpoint: bytes) -> Connection:
        """A way that works: it was tried. Raises ChannelError with what is in the way."""
        ...


@dataclass(frozen=True)
class Chosen:
    channel: str
    reason: str  # why this one and none before it
    connection: Connection


class Outlets:
    """Every channel of this worker, the best first."""

    def __init__(self, outlets: Sequence[Outlet]) -> None:
        self._outlets = tuple(outlets)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(outlet.name for outlet in self._outlets)

    def check(self, offered: Collection[str]) -> None:
        """Raises ChannelError where the two ends have no channel in common."""
        if not set(self.names) & set(offered):
            raise ChannelError(
                "the two workers have no channel in common: start both with the same --channel, or "
                "with auto",
                expected=", ".join(self.names),
                actual=", ".join(sorted(offered)),
            )

    async def connect(
        self, offers: Mapping[str, bytes], peer: str, barred: Mapping[str, str] = _NONE
    ) -> Chosen:
        """The best that both ends have and that works between them. Raises ChannelError.

        barred: channels that may not be used, each with the reason."""
        against: list[str] = []
        for outlet in self._outlets:
            if outlet.name in barred:
                against.append(f"{outlet.name}: {barred[outlet.name]}")
                continue
            if outlet.name not in offers:
                against.append(f"{outlet.name}: {peer} does not offer it")
                continue
            try:
                connection = await outlet.connect(offers[outlet.name])
            except ChannelError as error:
                against.append(f"{outlet.name}: {error}")
                continue
            return Chosen(outlet.name, "; ".join(against) or "the first of ours", connection)
        raise ChannelError(f"no channel joins {peer} to this worker: {'; '.join(against)}")
