"""The ports of several routers are settled before anything starts."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from baton.deploy.cluster.router_ports import settle_routers
from baton.deploy.errors import StartError
from baton.deploy.process.ports import settle
from baton.router.config import RouterConfig


def config(http: int = 0, grpc: int = 0, internal: int = 0) -> RouterConfig:
    return RouterConfig(Path(), http_port=http, grpc_port=grpc, internal_port=internal)


def test_router_i_has_each_given_port_plus_i() -> None:
    with ExitStack() as held:
        first = settle("127.0.0.1", {"--http-port": 0}, held)["--http-port"]
    with ExitStack() as held:
        ports = settle_routers(config(first), 3, held)
    assert [each.http for each in ports] == [first, first + 1, first + 2]
    free = [port for each in ports for port in (each.grpc, each.internal)]
    assert len(set(free)) == 6 and 0 not in free


def test_ports_that_two_routers_would_share_are_refused() -> None:
    with ExitStack() as held:
        with pytest.raises(StartError, match="8001 would be --http-port of router-1 and --grpc"):
            settle_routers(config(8000, 8001), 2, held)


def test_ports_beyond_the_last_are_refused() -> None:
    with ExitStack() as held:
        with pytest.raises(StartError, match="--routers 3 it may be at most 65533"):
            settle_routers(config(65534), 3, held)
