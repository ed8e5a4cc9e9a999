"""The channels of one worker: those that `--channel` means, and those that prefixes move by."""

from dataclasses import replace

from grpc import aio

from baton.transfer.channels import registry
from baton.transfer.channels.base import ChannelContext
from baton.transfer.channels.channel_set import ChannelSet
from baton.transfer.tickets import TicketTable
from baton.worker.context import WorkerContext


class WorkerChannels:
    """Every channel that this worker serves, grouped by what it is used for.

    handoffs: what `--channel` selects, for hand-offs. readable: prefixes are read by these, the
    best first. fenced: prefixes are written by these, under the fetcher's ticket.
    """

    def __init__(self, context: WorkerContext, tickets: TicketTable) -> None:
        """tickets: what may be written into this worker's memory.

        Raises ChannelError where the channel that the config names cannot be used here, and
        ConfigError for settings that contradict each other.
        """
        config = context.config
        selected = registry.select(
            config.channel, alone=context.hub is None, network=config.trusted_network
        )
        served = [*selected, *(f for f in registry.fallbacks() if f not in selected)]
        common = _channel_context(context, tickets)
        self._channels = tuple(
            channel(replace(common, verify=config.verifies(channel.name))) for channel in served
        )
        made = self._channels
        self.handoffs = ChannelSet([c for c in made[: len(selected)] if c.capabilities.push])
        self.readable = tuple(c for c in made if c.capabilities.pull)
        self.fenced = ChannelSet([c for c in made if c.capabilities.fenced])

    def add_to(self, server: aio.Server) -> None:
        """Add the services of all channels to this worker's gRPC server."""
        for channel in self._channels:
            channel.add_to(server)


def _channel_context(context: WorkerContext, tickets: TicketTable) -> ChannelContext:
    worker = context.hello.worker
    return ChannelContext(
        worker=f"{worker.worker_id}/{worker.incarnation}",
        memory=context.memory,
        tickets=tickets,
        poller=context.poller,
        lease_s=context.lease_s,
        verify=True,
        count_sent=context.metrics.transfers.count_sent,
        count_received=context.metrics.transfers.count_received,
        credentials=context.credentials,
        hub=context.hub,
        network=context.config.trusted_network,
    )
