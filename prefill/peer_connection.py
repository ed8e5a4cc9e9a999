"""The connection from this worker to one rank. It lives as long as the stream that joins the
two."""

import asyncio
import logging
from collections.abc import Callable

from baton.core.handoff_ids import TicketId
from baton.core.supervised import child
from baton.prefill.open_writes import OpenWrites, WrittenTicket
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.handoff_joins import joins
from baton.transfer.channels.channel_set import ChannelSet, ChosenChannel
from baton.transfer.channels.ends import Sender
from baton.transfer.errors import ChannelError
from baton.worker.host_process import unprovable

log = logging.getLogger(__name__)

RETRY_S = 1.0
Send = Callable[[handoff_pb2.PrefillMessage], None]


class PeerConnection:
    """Tries the channels at once, while prompts are read already: hand-offs wait for it."""

    def __init__(
        self,
        hello: common_pb2.Hello,
        process: common_pb2.HostProcess,
        channels: ChannelSet,
        open_writes: OpenWrites,
        send: Send,
    ) -> None:
        """hello: the rank's. process: this one."""
        self.rank = hello.worker
        self.open_writes = open_writes
        self.send = send
        self.counts_by_done = joins(hello)
        """True if the rank knows by Done alone when it need not look for bytes any more."""
        offers = {offer.channel: offer.endpoint for offer in hello.channels}
        why = unprovable(hello.process, process)
        barred = {name: why for name in channels.one_sided} if why is not None else {}
        self._choosing = child(channels.connect(offers, hello.worker, barred))

    async def sender(self) -> Sender:
        """Return the sender of the chosen channel. Raises ChannelError where no channel joins the
        two."""
        return (await self._chosen()).sender

    async def hold(self) -> None:
        """Tell the rank what was chosen. Returns once that is lost, or a while after no channel
        could be had: hand-offs say why, and the next stream tries again."""
        try:
            chosen = await self._chosen()
        except ChannelError as error:
            log.error("%s", error)
            await asyncio.sleep(RETRY_S)
            return
        word = handoff_pb2.ChannelChosen(channel=chosen.name, reason=chosen.reason)
        self.send(handoff_pb2.PrefillMessage(channel=word))
        log.info(
            "channel chosen",
            extra={
                "peer": self.rank.worker_id,
                "channel": chosen.name,
                "reason": chosen.reason,
            },
        )
        await chosen.sender.lost()
        log.warning("the %s channel to %s is lost", chosen.name, self.rank.worker_id)

    def heard(self) -> None:
        """Tell the sender that the rank has sent a message."""
        if self._choosing.done() and self._choosing.exception() is None:
            self._choosing.result().sender.heard()

    async def close(self) -> None:
        """Close the sender, after every hand-off was cancelled. It has drained when this
        returns."""
        await asyncio.wait([self._choosing])
        if self._choosing.exception() is None:  # else `hold` has ended the stream with it
            await self._choosing.result().sender.close()

    @property
    def channel(self) -> str:
        """The one that was chosen, and why; empty until then."""
        if not self._choosing.done() or self._choosing.exception() is not None:
            return ""
        chosen = self._choosing.result()
        return f"{chosen.name}: {chosen.reason}"

    @property
    def link_bytes_per_s(self) -> float:
        """Return the measured bandwidth of the chosen channel; 0: not known."""
        if not self._choosing.done() or self._choosing.exception() is not None:
            return 0.0
        return self._choosing.result().sender.link.bytes_per_s

    def ticket(self, ticket: TicketId) -> WrittenTicket:
        return WrittenTicket(self.rank.worker_id, self.rank.incarnation, ticket)

    async def _chosen(self) -> ChosenChannel:
        return await asyncio.shield(self._choosing)
