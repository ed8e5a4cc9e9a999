"""The channels that one worker uses for one purpose, and how one of them is chosen for a peer."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from baton.core.handoff_ids import TicketId
from baton.core.supervised import child
from baton.proto.common_pb2 import WorkerIdentity
from baton.transfer.channels.base import Channel
from baton.transfer.channels.ends import ChannelReceiver, Sender
from baton.transfer.errors import ChannelError

log = logging.getLogger(__name__)

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ChosenChannel:
    """The channel that a sender chose for one peer."""

    name: str
    reason: str  # why this channel and none before it
    sender: Sender


class ChannelSet:
    """Channels that push, the best first."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self._channels = tuple(channels)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(channel.name for channel in self._channels)

    @property
    def one_sided(self) -> tuple[str, ...]:
        """The names of those whose sender writes into the receiver's memory itself."""
        return tuple(c.name for c in self._channels if c.capabilities.one_sided)

    def check(self, offered: Collection[str]) -> None:
        """Raise ChannelError where the two ends have no channel in common."""
        if not set(self.names) & set(offered):
            raise ChannelError(
                "the two workers have no channel in common: start both with the same --channel, or "
                "with auto",
                expected=", ".join(self.names),
                actual=", ".join(sorted(offered)),
            )

    async def open_receiver(self) -> "Receiver":
        """Open the receiving end of every channel that can be opened now.

        Raises ChannelError when none can.
        """
        opened: dict[str, ChannelReceiver] = {}
        errors: list[str] = []
        for channel in self._channels:
            try:
                opened[channel.name] = await channel.open_receiver()
            except ChannelError as error:
                errors.append(f"{channel.name}: {error}")
                log.warning("no %s channel: %s", channel.name, error)
        if not opened:
            raise ChannelError(f"no channel can be offered: {'; '.join(errors)}")
        return Receiver(opened, self.one_sided)

    async def connect(
        self,
        offers: Mapping[str, bytes],
        peer: WorkerIdentity,
        barred: Mapping[str, str] = _NONE,
    ) -> ChosenChannel:
        """Connect by the best channel that both ends have and that works between them.

        offers: the endpoint of `peer` for each channel. barred: channels that may not be used, each
        with the reason. Raises ChannelError, which says what is wrong with each channel.
        """
        against: list[str] = []
        for channel in self._channels:
            if channel.name in barred:
                against.append(f"{channel.name}: {barred[channel.name]}")
                continue
            if channel.name not in offers:
                against.append(f"{channel.name}: {peer.worker_id} does not offer it")
                continue
            try:
                sender = await channel.connect_sender(offers[channel.name], peer)
            except ChannelError as error:
                against.append(f"{channel.name}: {error}")
                continue
            return ChosenChannel(channel.name, "; ".join(against) or "the first of ours", sender)
        raise ChannelError(
            f"no channel joins {peer.worker_id} to this worker: {'; '.join(against)}"
        )


class Receiver:
    """The receiving end for one peer's writes: every channel that is offered until the peer
    chooses, and the chosen one from then on. It lives as long as the stream that joins the two."""

    def __init__(
        self, receivers: Mapping[str, ChannelReceiver], one_sided: Collection[str]
    ) -> None:
        """receivers: by channel name. one_sided: the names whose sender writes by itself."""
        self._receivers = dict(receivers)
        self._one_sided = frozenset(one_sided)
        self._closing: list[asyncio.Future[None]] = []

    @property
    def offers(self) -> dict[str, bytes]:
        """The endpoint of each channel, which its sender needs to reach this end, by the channel's
        name."""
        return {name: receiver.endpoint for name, receiver in self._receivers.items()}

    @property
    def one_sided(self) -> bool:
        """True when bytes may land in a closed ticket's memory, because the sender puts them there
        itself. Until a channel is chosen: when any offered channel is one-sided."""
        return not self._one_sided.isdisjoint(self._receivers)

    def chosen(self, channel: str) -> None:
        """Close every channel but `channel`, which the peer has picked."""
        for name in [name for name in self._receivers if name != channel]:
            self._drop(name)
        for receiver in self._receivers.values():
            receiver.chosen()

    def bar_one_sided(self) -> None:
        """Withdraw the one-sided channels. The peer may not pick them, and has not yet."""
        for name in self._one_sided.intersection(self._receivers):
            self._drop(name)

    def moving(self, ticket: TicketId, under_way: bool, segments: int) -> None:
        """Pass on the sender's word; see OnMoving."""
        for receiver in self._receivers.values():
            receiver.moving(ticket, under_way, segments)

    async def close(self) -> None:
        """Tear down what ties the peer to this worker's memory. After this returns nothing is
        written here, except by a sender that shares memory with this process."""
        receivers = self._receivers.values()
        await asyncio.gather(*self._closing, *(receiver.close() for receiver in receivers))

    def _drop(self, channel: str) -> None:
        """Close one channel. Nothing was written by it: no hand-off begins before the choice."""
        self._closing.append(child(self._receivers.pop(channel).close()))
