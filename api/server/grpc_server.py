"""The gRPC server that clients connect to."""

import asyncio
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from baton.api.access.access import KeyInterceptor
from baton.api.access.key_gate import KeyGate
from baton.api.grpc.health import HealthServicer
from baton.api.grpc.inference import InferenceServicer
from baton.api.server.busy_connections import BusyConnections
from baton.api.server.call_guard import CallGuard
from baton.api.server.client_guard import ClientGuard
from baton.api.server.surplus_connections import SurplusConnections
from baton.core.address import join_host_port
from baton.core.errors import ConfigError
from baton.core.supervised import OnFailure, ProcessSupervisor, spawn
from baton.proto import inference_pb2, inference_pb2_grpc
from baton.rpc.channel_options import public_server_options
from baton.rpc.client_tls import ClientTls

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
PENDING_CALLS = 4096
"""Calls that may wait until the event loop takes them."""
_TAKEN_S, _LOOK_S = 3.0, 0.1
"""Seconds for which a port is tried that is taken, and those between two tries. Routers' ports are
reserved before the start, and yet one start in several hundred found its port taken."""


class GrpcServer:
    """A server of `baton.v1.Inference`, health and reflection."""

    def __init__(
        self,
        inference: InferenceServicer,
        host: str,
        port: int,
        owner: ProcessSupervisor,
        *,
        max_body_bytes: int,
        keys: KeyGate | None = None,
        tls: ClientTls | None = None,
        guard: ClientGuard | None = None,
    ) -> None:
        """Bind the address. Raises ConfigError if that fails. Port 0 is any free port.

        keys: None serves everybody. tls: None serves in the clear. guard: None has the
        default limits.
        """
        guard = guard or ClientGuard.make()
        busy = BusyConnections(guard.limits.of_client(guard.grpc_connections))
        interceptors: list[grpc.aio.ServerInterceptor] = [
            CallGuard(guard.limits, guard.metrics, busy, guard.calls, keys)
        ]
        if keys is not None:
            interceptors.append(KeyInterceptor(keys, guard.calls))
        self.health = HealthServicer()
        self.server = grpc.aio.server(
            interceptors=interceptors,
            options=public_server_options(max_body_bytes, _bounds(guard)),
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(inference, self.server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        reflection.enable_server_reflection(
            (INFERENCE, HEALTH, reflection.SERVICE_NAME), self.server
        )
        self.port = self._listen(host, port, tls)
        self._surplus = SurplusConnections(self.port, busy, guard.metrics)
        self._owner = owner
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to accept connections."""
        await self.server.start()
        # ANEW: each look counts the connections afresh.
        watch, name = self._surplus.watch, "surplus gRPC connections"
        self._watching = spawn(watch, self._owner, OnFailure.ANEW, name)

    async def stop(self, grace_s: float) -> None:
        """Stop accepting, give running calls `grace_s` to end, then close their connections."""
        if self._watching is not None:
            self._watching.cancel()
        await self.server.stop(grace_s)

    def _listen(self, host: str, port: int, tls: ClientTls | None) -> int:
        address = join_host_port(host, port)
        until = time.monotonic() + _TAKEN_S
        while True:
            try:
                if tls is None:
                    return int(self.server.add_insecure_port(address))
                return int(self.server.add_secure_port(address, tls.grpc_credentials()))
            except RuntimeError as error:
                if port and time.monotonic() < until:
                    time.sleep(_LOOK_S)
                    continue
                raise ConfigError(
                    f"cannot listen for gRPC on {host} port {port}: {error}; name another address, "
                    "or port 0 for any free one"
                ) from error


def _bounds(guard: ClientGuard) -> dict[str, int]:
    """Return the options of gRPC that bound what clients may do."""
    limits = guard.limits
    return {
        "grpc.max_allowed_incoming_connections": guard.grpc_connections,
        "grpc.server_handshake_timeout_ms": round(limits.header_s * 1000),
        "grpc.max_connection_idle_ms": round(limits.grpc_idle_s * 1000),
        # Of one connection, all that one address may have.
        "grpc.max_concurrent_streams": limits.grpc_streams_of_client
        + 2 * limits.idle_grpc_streams_of_client,
        # By itself gRPC refuses some of more than 1,000 calls that the event loop has not taken yet
        # by chance, whoever sent them.
        "grpc.server.max_pending_requests": PENDING_CALLS,
        "grpc.server.max_pending_requests_hard_limit": 2 * PENDING_CALLS,
        # Beyond the first, gRPC refuses more and more calls by chance; from the second on, all.
        "grpc.max_metadata_size": limits.header_bytes // 2,
        "grpc.absolute_max_metadata_size": limits.header_bytes,
    }
