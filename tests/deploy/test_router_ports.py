"""The ports of several routers are settled before anything starts."""

from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from baton.deploy.cluster.config import ClusterConfig
from baton.deploy.cluster.router_ports import RouterPorts, settle_routers, wanted_ports
from baton.deploy.errors import StartError
from baton.deploy.process.ports import settle
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig


def config(http: int = 0, grpc: int = 0, internal: int = 0) -> RouterConfig:
    return RouterConfig(Path(), http_port=http, grpc_port=grpc, internal_port=internal)


def _three_free_ports() -> int:
    """Return the first of three. They lie below those that the kernel gives to other processes."""
    for first in range(20000, 30000, 3):
        with ExitStack() as held, suppress(StartError):
            settle("127.0.0.1", {f"--port-{i}": first + i for i in range(3)}, held)
            return first
    raise AssertionError("no three ports are free")


def test_router_i_has_each_given_port_plus_i() -> None:
    first = _three_free_ports()
    with ExitStack() as held:
        ports = settle_routers(config(first), 3, held)
    assert [each.http for each in ports] == [first, first + 1, first + 2]
    free = [port for each in ports for port in (each.grpc, each.internal)]
    assert len(set(free)) == 6 and 0 not in free


def test_ports_that_two_routers_would_share_are_refused() -> None:
    with ExitStack() as held:
        with pytest.raises(StartError, match="8001 would be --http-port of router-1 and --grpc"):
            settle_routers(config(8000, 8001), 2, held)


def test_routers_on_any_node_have_the_ports_that_are_given_or_any_free_one() -> None:
    assert wanted_ports(config(8000, 0, 7000), 2) == (
        RouterPorts(8000, 0, 7000),
        RouterPorts(8001, 0, 7001),
    )
    with pytest.raises(StartError, match="8001 would be --http-port of router-1 and --grpc"):
        wanted_ports(config(8000, 8001), 2)


@pytest.mark.parametrize(
    ("ray", "host", "internal", "move"),
    [
        ("10.0.0.1:6379", "0.0.0.0", "127.0.0.1", True),
        ("10.0.0.1:6379", "::", "127.0.0.1", True),
        ("10.0.0.1:6379", "10.0.0.1", "127.0.0.1", False),
        ("10.0.0.1:6379", "127.0.0.1", "127.0.0.1", False),
        ("10.0.0.1:6379", "0.0.0.0", "10.0.0.1", False),
        (None, "0.0.0.0", "127.0.0.1", False),
    ],
)
def test_an_address_of_one_host_keeps_routers_there(
    ray: str | None, host: str, internal: str, move: bool
) -> None:
    router = RouterConfig(Path(), host=host, internal_host=internal)
    assert ClusterConfig(EngineConfig(Path()), router, ray_address=ray).routers_move is move


def test_ports_beyond_the_last_are_refused() -> None:
    with ExitStack() as held:
        with pytest.raises(StartError, match="--routers 3 it may be at most 65533"):
            settle_routers(config(65534), 3, held)
