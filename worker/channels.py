"""Which channels a worker has: what `--channel` names, made from its context."""

from baton.transfer.grpc_channel import GrpcOutlet, GrpcSource
from baton.transfer.inlets import Inlets
from baton.transfer.outlets import Outlets
from baton.worker.context import WorkerContext


def make_outlets(context: WorkerContext) -> Outlets:
    """The prefill worker's."""
    grpc = GrpcOutlet(
        context.memory,
        verify=context.config.verify,
        deadline_s=context.lease_s,
        on_bytes=context.metrics.count_sent,
    )
    return Outlets([grpc])


def make_inlets(context: WorkerContext) -> Inlets:
    """The decode rank's."""
    return Inlets([GrpcSource(context.hello.worker.address)])
