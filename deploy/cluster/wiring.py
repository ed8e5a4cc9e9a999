"""The configs of the routers and of each worker: addresses, threads, shares of memory."""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from baton.api.access.keys import digest_of, new_key
from baton.core.address import WILDCARDS, join_host_port
from baton.core.role import Role
from baton.deploy.certs.authority import AuthorityFiles
from baton.deploy.certs.authority_folder import AuthorityFolder
from baton.deploy.certs.cluster_credentials import (
    Issuer,
    cluster_credentials,
    credentials_in,
)
from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.member import Member
from baton.deploy.cluster.router_ports import RouterPorts, settle_routers, wanted_ports
from baton.router.config import RouterConfig
from baton.rpc.identity import ProcessRole
from baton.transfer.channels.names import AUTO, NIXL
from baton.transfer.channels.nixl.staging import STAGING_BYTES
from baton.worker.config import WorkerConfig
from baton.worker.state_options import StateReturn

MOST_TICKETS = 8
"""Hand-offs at once into one rank: more only wait for the same network and memory."""


OPERATOR = (ProcessRole.OPERATOR, "operator-0")


@dataclass(frozen=True)
class Wiring:
    """The addresses and shares of one cluster, settled once before anything starts."""

    config: ClusterConfig
    ports: tuple[RouterPorts, ...]  # of each router; of one that may move 0: any free one
    threads: int  # compute threads of each worker: oversubscribed OpenMP collapses
    credentials: Issuer
    operator_key: str = field(default_factory=new_key, repr=False)  # stays in this process
    # Where the only router finds the HTTP socket that outlives it; None: it makes its own.
    listener: Path | None = None

    @classmethod
    def resolve_options(
        cls, config: ClusterConfig, held: ExitStack, folder: Path | None = None
    ) -> Self:
        """Choose ports and threads, and issue the certificates of routers and operator.

        held: keeps the ports reserved, and the certificates' folder. folder: for certificates that
        outlive this process; None: one that ends with `held`. Raises StartError if a port or the
        authority cannot be used.
        """
        ports = (
            wanted_ports(config.router, config.routers)
            if config.routers_move
            else settle_routers(config.router, config.routers, held)
        )
        credentials = _issuer(config.authority, held, folder)
        for role, name in (*map(_router, range(config.routers)), OPERATOR):
            credentials.issue(role, name)
        return cls(config, ports, threads_of(config), credentials)

    @property
    def http_addresses(self) -> tuple[str, ...]:
        """Return each router's host:port as this machine reaches it, unless they move."""
        return tuple(join_host_port(self._reachable, ports.http) for ports in self.ports)

    @property
    def grpc_addresses(self) -> tuple[str, ...]:
        return tuple(join_host_port(self._reachable, ports.grpc) for ports in self.ports)

    def issue(self, member: Member) -> None:
        """Issue the certificate that this member's config names."""
        self.credentials.issue(ProcessRole(member.role), member.worker_id)

    def has_issued(self, member: Member) -> bool:
        return self.credentials.folder_of(ProcessRole(member.role), member.worker_id).exists()

    def forget(self, member: Member) -> None:
        """Delete the certificate of a member that has left. Idempotent."""
        self.credentials.forget(ProcessRole(member.role), member.worker_id)

    @property
    def router_names(self) -> tuple[str, ...]:
        return tuple(_router(number)[1] for number in range(len(self.ports)))

    def router(self, number: int = 0) -> RouterConfig:
        """Return the config of one router."""
        ports = self.ports[number]
        return replace(
            self.config.router,
            model=self.config.engine.model,
            credentials=self.credentials.folder_of(*_router(number)),
            operator_sha256=digest_of(self.operator_key),
            http_port=ports.http,
            grpc_port=ports.grpc,
            internal_port=ports.internal,
            routers=len(self.ports),
        )

    def worker(self, member: Member) -> WorkerConfig:
        decodes = member.role is Role.DECODE
        given = self.config.engine
        engine = given.for_answers if decodes else given.for_prompts
        takes_in = decodes or self.config.state_return is not StateReturn.OFF
        return WorkerConfig(
            member.worker_id,
            member.role,
            replace(
                engine,
                tp=self.config.tp_of(member.role),
                threads=self.threads,
                workers_on_host=len(self.config.members),
                tickets=min(engine.most_running, MOST_TICKETS) if takes_in else 0,
                staging_bytes=self._staging_bytes(member.role),
            ),
            dp_group=self.config.group_of(member.number) if decodes else 0,
            routers=self._registries,
            credentials=self.credentials.folder_of(ProcessRole(member.role), member.worker_id),
            lease_ms=self.config.router.lease_ms,
            channel=self.config.channel,
            nixl_interfaces=self.config.nixl_interfaces,
            verify=self.config.verify,
            state_return=self.config.state_return,
            send_snapshots=self.config.send_snapshots,
            profile_folder=self.config.profile_folder,
            telemetry=self.config.router.telemetry,
        )

    def _staging_bytes(self, role: Role) -> int:
        """Return the most that a worker's buffers for peers of other numbers of ranks take, of
        those that the cluster starts with."""
        config = self.config
        equal = config.prefill_tp == config.decode_tp
        if equal or config.engine.device != "cpu" or config.channel not in (AUTO, NIXL):
            return 0
        peers = sum(member.role is not role for member in config.members)
        returns = role is Role.PREFILL and config.state_return is not StateReturn.OFF
        return peers * (1 + returns) * STAGING_BYTES

    @property
    def listening(self) -> list[tuple[str, int]]:
        """Return the hosts and ports on which routers listen that stay on this process's node."""
        if self.config.routers_move:
            return []
        router = self.config.router
        clients = [(router.host, port) for each in self.ports for port in (each.http, each.grpc)]
        return clients + [(router.internal_host, each.internal) for each in self.ports]

    @property
    def _registries(self) -> tuple[str, ...]:
        """Return where each router takes registrations; none for those that move."""
        if self.config.routers_move:
            return ()
        host = self.config.router.internal_host
        return tuple(join_host_port(host, each.internal) for each in self.ports)

    @property
    def _reachable(self) -> str:
        """Return a host to connect to: loopback where the router listens on a wildcard."""
        return WILDCARDS.get(self.config.router.host, self.config.router.host)


def threads_of(config: ClusterConfig) -> int:
    """Return the compute threads of each worker: those asked for, or an even share of the cores."""
    cores = len(os.sched_getaffinity(0))
    return config.threads or max(1, cores // len(config.members))


def _router(number: int) -> tuple[ProcessRole, str]:
    """Return the identity of a router."""
    return ProcessRole.ROUTER, f"router-{number}"


def _issuer(
    authority: AuthorityFiles | Path | None, held: ExitStack, folder: Path | None
) -> Issuer:
    """Return who issues the cluster's certificates.

    held: keeps their folder, if `folder` names none. Raises DeployError.
    """
    if isinstance(authority, Path):
        return AuthorityFolder(authority)
    if folder is not None:
        return credentials_in(folder, authority)
    return held.enter_context(cluster_credentials(authority))
