"""The options of the transfer of state. Its import needs neither torch nor gRPC."""

from dataclasses import dataclass

from baton.core.options import Group, Words, option
from baton.transfer.channels.names import AUTO, BETWEEN_PROCESSES


# fmt: off
@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """The way in which state travels between workers."""

    # Each process has one engine, so a channel inside one process has no other end.
    channel: str = option(
        AUTO, Group.TRANSFER,
        "Channel for state between workers; auto takes the best that both ends have.",
        Words({name: name for name in (AUTO, *BETWEEN_PROCESSES)}))
    nixl_interfaces: tuple[str, ...] = option(
        (), Group.TRANSFER,
        "A network or RDMA device on which NIXL may listen, because everybody there is trusted: "
        "NIXL asks nobody who they are. May be given several times; loopback alone when left out.",
        names=("--nixl-interface",), metavar="NAME")
    verify: bool | None = option(
        None, Group.TRANSFER,
        "Checksums of transferred state; full by default, but off between GPUs.",
        Words({"off": False, "full": True}))
# fmt: on
