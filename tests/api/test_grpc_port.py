"""The port that the gRPC server of clients listens on."""

import socket
import threading
from typing import cast

import pytest
from api.attacked_grpc import Inference

from baton.api.grpc.inference import InferenceServicer
from baton.api.server import grpc_server
from baton.api.server.grpc_server import GrpcServer
from baton.core.errors import ConfigError
from baton.core.supervised import ProcessSupervisor


def made(port: int) -> GrpcServer:
    inference = cast(InferenceServicer, Inference())
    return GrpcServer(inference, "127.0.0.1", port, ProcessSupervisor(), max_body_bytes=1 << 20)


async def test_a_port_that_is_taken_for_a_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_server, "_TAKEN_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        freeing = threading.Timer(0.3, taken.close)
        freeing.start()
        server = made(port)
    freeing.join()
    assert server.port == port
    await server.stop(0)


async def test_a_port_that_stays_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_TAKEN_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen for gRPC on 127.0.0.1 port {port}"):
            made(port)
