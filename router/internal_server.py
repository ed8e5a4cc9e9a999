"""The router's gRPC server for the processes of its cluster. Clients have another."""

import grpc
from grpc_health.v1 import health_pb2_grpc

from baton.api.grpc.health import HealthServicer
from baton.core.address import join_host_port
from baton.core.errors import ConfigError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.proto import worker_pb2_grpc
from baton.router.cluster_view.registry import RegistryServicer
from baton.router.config import RouterConfig
from baton.rpc.access import AccessInterceptor
from baton.rpc.channel_options import OPTIONS
from baton.rpc.credentials import Credentials

STOP_GRACE_S = 0.25


class InternalServer:
    """A server of `Registry` and health at which both sides show certificates; no reflection."""

    def __init__(
        self, config: RouterConfig, credentials: Credentials, owner: ProcessSupervisor
    ) -> None:
        """It is made on the running loop."""
        self._config = config
        self._credentials = credentials
        access = AccessInterceptor(credentials)
        self._owner = owner
        # Two routers must not share a port without noticing.
        options = (*OPTIONS, ("grpc.so_reuseport", 0))
        self._server = grpc.aio.server(interceptors=[access], options=options)

    async def start(self, registry: RegistryServicer, health: HealthServicer) -> str:
        """Serve, and return `host:port`. Raises ConfigError if the port is taken."""
        host, wanted = self._config.internal_host, self._config.internal_port
        worker_pb2_grpc.add_RegistryServicer_to_server(registry, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        try:
            port: int = self._server.add_secure_port(
                join_host_port(host, wanted), self._credentials.server()
            )
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen for workers on {host} port {wanted}: {error}; name another port, "
                "or 0 for any free one"
            ) from error
        await self._server.start()
        # ANEW: a look at the files needs nothing of the look before.
        spawn(self._credentials.watch, self._owner, OnFailure.ANEW, "certificates")
        return join_host_port(host, port)

    async def stop(self) -> None:
        await self._server.stop(STOP_GRACE_S)
