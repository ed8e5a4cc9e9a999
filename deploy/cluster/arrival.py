"""The part of a worker's config that is known once Ray has chosen a node for it.

Ray starts a worker again with its first arguments, perhaps on another node. Each life of the
process therefore looks up its own address, and writes its certificate there anew.
"""

import shutil
import socket
from contextlib import ExitStack
from dataclasses import dataclass, replace

import psutil

from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster import ray_nodes
from baton.deploy.errors import StartError
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import folder
from baton.worker.config import WorkerConfig

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True)
class Travel:
    """The things that a worker takes along to a node of a Ray that others run."""

    files: CredentialFiles  # of its certificate
    interface: str | None = None  # whose address it listens on; None: the node's in Ray
    # The cluster whose routers may be on any node, and are looked up; None: the config names them.
    routers_of: str | None = None


@dataclass(frozen=True)
class Arrival:
    """Completes a worker's config in each life of its process."""

    made_ns: int  # Unix time when the worker was made, on the clock of whoever made it
    travel: Travel | None = None  # None: it stays on the machine of whoever made it

    @property
    def routers_of(self) -> str | None:
        """Return the name of the cluster whose routers this worker looks up; None: it does not."""
        return None if self.travel is None else self.travel.routers_of

    def complete(self, config: WorkerConfig, held: ExitStack) -> WorkerConfig:
        """Return the config for this life, whose incarnation is above those of earlier ones.

        held: keeps the folder of the certificate, and removes it when closed. Raises StartError.
        """
        # Clocks of nodes differ, so a time of this node's could be below that of an earlier life.
        incarnation = self.made_ns + ray_nodes.restarts_of_this_actor()
        config = replace(config, incarnation=incarnation)
        if self.travel is None:
            return config
        credentials = held.enter_context(owned_folder(folder()))
        held.callback(shutil.rmtree, credentials, ignore_errors=True)
        self.travel.files.write(credentials)
        return replace(config, host=self._host(self.travel), credentials=credentials)

    def _host(self, travel: Travel) -> str:
        if travel.interface is None:
            return ray_nodes.this_address()
        return address_of(travel.interface)


def address_of(interface: str) -> str:
    """Return this machine's first address on an interface, IPv4 before IPv6. Raises StartError."""
    found = psutil.net_if_addrs()
    if interface not in found:
        raise StartError(
            f"--worker-interface {interface}: this machine has {', '.join(sorted(found))}"
        )
    for family in _FAMILIES:
        for each in found[interface]:
            if each.family == family and not each.address.startswith("fe80:"):
                return each.address
    raise StartError(f"--worker-interface {interface} has no address on this machine")
