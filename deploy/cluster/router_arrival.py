"""The part of a router's config that is known once Ray has chosen a node for it.

As `Arrival` does for a worker: each life looks up its own address, and writes its files anew.
"""

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace

from baton.core.address import join_host_port
from baton.core.supervised import ProcessSupervisor
from baton.deploy.certs.credential_files import CredentialFiles
from baton.deploy.cluster import ray_nodes
from baton.deploy.cluster.control_relay import relaying
from baton.deploy.cluster.router_places import RouterPlace, RouterPlaces
from baton.deploy.files.owned_folder import owned_folder
from baton.deploy.files.state_file import folder
from baton.router.config import RouterConfig
from baton.router.server import RouterStarted
from baton.rpc.server_certificate import CertificateFiles

_CONTROL = "control.sock"
_API_KEYS = "api-keys.json"
_CLIENT_CERT, _CLIENT_KEY = "client.pem", "client.key"


def files_of(config: RouterConfig) -> CredentialFiles:
    """Read what a router takes along to another host: its certificate for workers, that for
    clients, and the API keys. Raises OSError.
    """
    assert config.credentials is not None  # the cluster has issued it
    content = dict(CredentialFiles.read(config.credentials).content)
    if config.api_keys is not None:
        content[_API_KEYS] = config.api_keys.read_bytes()
    if config.client_tls is not None:
        content[_CLIENT_CERT] = config.client_tls.certificate.read_bytes()
        content[_CLIENT_KEY] = config.client_tls.key.read_bytes()
    return CredentialFiles(content)


@dataclass(frozen=True)
class RouterArrival:
    """Completes a router's config in each life of its process, and records where that life is."""

    name: str
    cluster: str  # its name, under which the places of its routers are kept
    made_ns: int  # Unix time when the router was made, on the clock of whoever made it
    files: CredentialFiles  # from `files_of`

    @property
    def incarnation(self) -> int:
        """Return the number of this life, above those of earlier ones."""
        return self.made_ns + ray_nodes.restarts_of_this_actor()

    def complete(
        self, config: RouterConfig, held: ExitStack, owner: ProcessSupervisor
    ) -> RouterConfig:
        """Return the config for this life.

        held: keeps the folder of the files, and the socket in it that takes requests for the
        supervisor, and removes both when closed.
        """
        own = held.enter_context(owned_folder(folder()))
        held.callback(shutil.rmtree, own, ignore_errors=True)
        self.files.write(own)
        keys = None if config.api_keys is None else own / _API_KEYS
        control = None if config.control is None else own / _CONTROL
        if control is not None:
            held.enter_context(relaying(control, owner))
        tls = CertificateFiles(own / _CLIENT_CERT, own / _CLIENT_KEY) if config.client_tls else None
        return replace(
            config,
            credentials=own,
            api_keys=keys,
            client_tls=tls,
            control=control,
            internal_host=ray_nodes.this_address(),
        )

    def record(self, started: RouterStarted) -> RouterPlace:
        """Record where this life listens, and return it. Raises StartError if there is a later
        life.
        """
        place = RouterPlace(
            self.incarnation,
            _here(started.http_address),
            _here(started.grpc_address),
            started.internal_address,
        )
        RouterPlaces(self.cluster).write(self.name, place)
        return place


def _here(address: str) -> str:
    """Return this node's address with the port of one that stands for all of its addresses."""
    return join_host_port(ray_nodes.this_address(), int(address.rpartition(":")[2]))
