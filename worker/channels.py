"""Which channels a worker has: what `--channel` names, made from its context."""

import logging

from baton.transfer.errors import ChannelError
from baton.transfer.grpc_channel import GRPC, GrpcOutlet, GrpcSource
from baton.transfer.inlets import Inlets, IntakeSource
from baton.transfer.local_channel import LOCAL, Landing, LocalOutlet, LocalSource
from baton.transfer.nixl_agent import check_installed
from baton.transfer.nixl_intake import NixlSource
from baton.transfer.nixl_outlet import NIXL, NixlOutlet, NixlSettings
from baton.transfer.outlets import Outlet, Outlets
from baton.transfer.tickets import TicketTable
from baton.worker.config import AUTO
from baton.worker.context import WorkerContext

log = logging.getLogger(__name__)


def channel_names(context: WorkerContext) -> list[str]:
    """The best first. With `auto`, all that this worker can have; else the one that it was told.

    Raises ChannelError where that one cannot be.
    """
    wanted = context.config.channel
    if wanted == NIXL:
        check_installed()
    if wanted == LOCAL and context.hub is None:
        raise ChannelError("--channel local is for engines of one process: this one is alone")
    if wanted != AUTO:
        return [wanted]
    names = [LOCAL] if context.hub is not None else []
    try:
        check_installed()
        names.append(NIXL)
    except ChannelError as error:
        log.warning("no nixl channel: %s", error)
    return [*names, GRPC]


def make_outlets(context: WorkerContext) -> Outlets:
    """The prefill worker's. Raises ChannelError."""
    return Outlets([_outlet(name, context) for name in channel_names(context)])


def make_inlets(context: WorkerContext, tickets: TicketTable) -> Inlets:
    """The decode rank's. Raises ChannelError."""
    return Inlets([_source(name, context, tickets) for name in channel_names(context)])


def _outlet(name: str, context: WorkerContext) -> Outlet:
    memory, verify = context.memory, context.config.verifies(name)
    on_bytes = context.metrics.count_sent
    if name == LOCAL:
        assert context.hub is not None
        return LocalOutlet(context.hub, memory, verify=verify, on_bytes=on_bytes)
    if name == NIXL:
        settings = NixlSettings(
            agent_name(context), memory, context.poller, verify, context.lease_s, on_bytes
        )
        return NixlOutlet(settings)
    return GrpcOutlet(
        memory,
        verify=verify,
        deadline_s=context.lease_s,
        on_bytes=on_bytes,
        tls=context.config.tls,
    )


def _source(name: str, context: WorkerContext, tickets: TicketTable) -> IntakeSource:
    memory, on_bytes = context.memory, context.metrics.count_received
    if name == LOCAL:
        assert context.hub is not None
        return LocalSource(context.hub, Landing(tickets, memory, on_bytes))
    if name == NIXL:
        return NixlSource(agent_name(context), memory, tickets, context.poller, on_bytes)
    return GrpcSource(context.data_address)


def agent_name(context: WorkerContext) -> str:
    """What names of its NIXL agents begin with."""
    worker = context.hello.worker
    return f"{worker.worker_id}/{worker.incarnation}"
