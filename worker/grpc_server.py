"""A worker's gRPC server: its ports, services, health and reflection."""

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from baton.core.errors import ConfigError
from baton.core.role import Role
from baton.proto import handoff_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.worker.config import WorkerConfig
from baton.worker.context import RoleService

WORKER_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name
SERVICES = {
    Role.PREFILL: handoff_pb2.DESCRIPTOR.services_by_name["Handoff"].full_name,
    Role.DECODE: worker_pb2.DESCRIPTOR.services_by_name["Rank"].full_name,
    Role.BOTH: WORKER_SERVICE,  # its clients have a server of their own
}
STOP_GRACE_S = 0.2
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class WorkerServer:
    """A gRPC server that listens from the start and answers from `start` on.

    It is made on the running loop. `address` and `data_address` are `host:port`; the gRPC channel's
    bytes come to `data_address`, which has a port of its own where certificates are configured.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Raises ConfigError if a port is taken or a certificate cannot be read."""
        self._config = config
        self._server = aio.server(options=OPTIONS)
        self._health = health.aio.HealthServicer()
        self.address = f"{config.host}:{self._listen()}"
        self.data_address = self._listen_for_data()

    def add_services(self, role: RoleService, worker: worker_pb2_grpc.WorkerServicer) -> None:
        """Add the services of the role and those of every worker."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        worker_pb2_grpc.add_WorkerServicer_to_server(worker, self._server)
        role.add_to(self._server)
        names = {
            SERVICES[self._config.role],
            WORKER_SERVICE,
            health.SERVICE_NAME,
            reflection.SERVICE_NAME,
        }
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> None:
        await self._server.start()

    async def report_serving(self) -> None:
        """Report the process and its role's service as healthy."""
        await self._health.set(SERVICES[self._config.role], _SERVING)
        await self._health.set("", _SERVING)

    async def report_not_serving(self) -> None:
        """Report the process as unhealthy: whoever started it should start another."""
        await self._health.set("", _NOT_SERVING)

    async def stop(self) -> None:
        """Let calls that have ended send their last bytes, end the others and close the ports."""
        await self._server.stop(STOP_GRACE_S)

    def _listen(self) -> int:
        wanted = f"{self._config.host}:{self._config.grpc_port}"
        try:
            port: int = self._server.add_insecure_port(wanted)
        except RuntimeError as error:  # grpc raises it for every reason
            raise ConfigError(
                f"cannot listen on {wanted}: {error}; choose another port, or 0 for any"
            ) from error
        return port

    def _listen_for_data(self) -> str:
        tls = self._config.tls
        if tls is None:
            return self.address
        try:
            port: int = self._server.add_secure_port(f"{self._config.host}:0", tls.server())
        except OSError as error:
            raise ConfigError(f"cannot read a certificate: {error}") from error
        return f"{self._config.host}:{port}"
