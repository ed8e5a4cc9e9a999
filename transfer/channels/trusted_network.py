"""The network in which a worker trusts every process that can connect."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.core.address import is_loopback
from baton.core.errors import ConfigError
from baton.transfer.errors import ChannelError

LOOPBACK = "lo"
_RDMA = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class TrustedNetwork:
    """The only place where a channel that authenticates nobody may listen."""

    host: str = "127.0.0.1"  # where peers reach this worker
    interfaces: tuple[str, ...] = ()  # those that the operator trusts; none: loopback alone

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices on which such a channel may listen.

        Raises ChannelError where peers reach this worker by a network that nobody has named.
        """
        if self.interfaces:
            return self.interfaces
        if is_loopback(self.host):
            return (LOOPBACK,)
        raise ChannelError(
            f"peers reach this worker at {self.host}, and NIXL asks nobody who they are: name an "
            "interface on which you trust everybody (--nixl-interface), or use --channel grpc"
        )


LOCAL = TrustedNetwork()


def check_interfaces(names: Sequence[str]) -> None:
    """Raise ConfigError for an interface that this machine lacks.

    names: network interfaces (eth1), or RDMA devices with or without a port (mlx5_0, mlx5_0:1).
    """
    there = [name for _, name in socket.if_nameindex()]
    for name in names:
        if name not in there and not is_rdma(name):
            there += sorted(path.name for path in _RDMA.glob("*"))
            raise ConfigError(
                f"--nixl-interface {name}: no such interface here; there are {', '.join(there)}"
            )


def is_rdma(name: str) -> bool:
    """Return True for an RDMA device of this machine, with or without a port."""
    return (_RDMA / name.partition(":")[0]).exists()
