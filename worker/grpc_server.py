"""The gRPC server at which a worker's peers reach it: routers, other workers, the operator."""

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from baton.core.address import join_host_port
from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.proto import handoff_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.access import AccessInterceptor
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials
from baton.worker.config import WorkerConfig
from baton.worker.context import RoleService

SERVICES = {
    Role.PREFILL: handoff_pb2.DESCRIPTOR.services_by_name["Handoff"].full_name,
    Role.DECODE: worker_pb2.DESCRIPTOR.services_by_name["Rank"].full_name,
}
STOP_GRACE_S = 0.2
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class WorkerServer:
    """A gRPC server that listens from the start and answers from `start` on.

    It is made on the running loop. It has one port, where all sides show certificates, and offers
    no reflection. The server of a worker that stands alone has no port. `address` is `host:port`,
    or empty.
    """

    def __init__(self, config: WorkerConfig, owner: ProcessSupervisor) -> None:
        """Raises ConfigError if the port is taken, or the credentials cannot be used."""
        self._config = config
        self._health = health.aio.HealthServicer()
        self._owner = owner
        self.credentials: Credentials | None = None
        self.address = ""
        if config.credentials is None:
            self._server = aio.server()
            return
        self.credentials = Credentials(config.credentials)
        _check_owner(config, self.credentials)
        access = AccessInterceptor(self.credentials)
        # Two workers must not share a port without noticing.
        options = (*OPTIONS, ("grpc.so_reuseport", 0))
        self._server = aio.server(interceptors=[access], options=options)
        self.address = join_host_port(config.peer_host, self._listen(self.credentials))

    def add_services(self, role: RoleService, worker: worker_pb2_grpc.WorkerServicer) -> None:
        """Add the services of the role and those of every worker."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        worker_pb2_grpc.add_WorkerServicer_to_server(worker, self._server)
        role.add_to(self._server)

    async def start(self) -> None:
        await self._server.start()
        if self.credentials is not None:
            # ANEW: a look at the files needs nothing of the look before.
            spawn(self.credentials.watch, self._owner, OnFailure.ANEW, "certificates")

    async def report_serving(self) -> None:
        """Report the process and its role's service as healthy."""
        if self._config.role in SERVICES:
            await self._health.set(SERVICES[self._config.role], _SERVING)
        await self._health.set("", _SERVING)

    async def report_not_serving(self) -> None:
        """Report the process as unhealthy: whoever started it should start another."""
        if self._config.role in SERVICES:
            await self._health.set(SERVICES[self._config.role], _NOT_SERVING)
        await self._health.set("", _NOT_SERVING)

    async def stop(self) -> None:
        """Let calls that have ended send their last bytes, end the others and close the port."""
        await self._server.stop(STOP_GRACE_S)

    def _listen(self, credentials: Credentials) -> int:
        wanted = join_host_port(self._config.host, self._config.grpc_port)
        try:
            port: int = self._server.add_secure_port(wanted, credentials.server())
        except RuntimeError as error:  # grpc raises it for every reason
            raise ConfigError(
                f"cannot listen on {wanted}: {error}; choose another port, or 0 for any"
            ) from error
        return port


def _check_owner(config: WorkerConfig, credentials: Credentials) -> None:
    """Raise ConfigError for the certificate of another process: no peer would admit this one."""
    found = credentials.identity
    if (found.name, found.role.value) != (config.worker_id, config.role.value):
        raise ConfigError(
            f"{config.credentials} has the certificate of {found.role} {found.name!r}; this is "
            f"{config.role} {config.worker_id!r}"
        )
