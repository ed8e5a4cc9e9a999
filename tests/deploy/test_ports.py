"""Ports are chosen, and checked, before anything starts."""

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import pytest

from baton.deploy.errors import StartError
from baton.deploy.process.ports import PortKeeper, settle


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_every_option_that_asks_for_any_port_gets_one_of_its_own(held: ExitStack) -> None:
    ports = settle("127.0.0.1", {f"--port-{i}": 0 for i in range(20)}, held)
    assert len(set(ports.values())) == 20 and all(ports.values())


def test_a_free_port_is_given_as_asked_and_is_free_again_after() -> None:
    with ExitStack() as held:
        free = settle("127.0.0.1", {"--http-port": 0}, held)["--http-port"]
    with ExitStack() as held:
        assert settle("127.0.0.1", {"--http-port": free}, held) == {"--http-port": free}
    with socket.socket() as anyone:
        anyone.bind(("127.0.0.1", free))


@pytest.mark.skipif(sys.platform != "linux", reason="there a bound port is bound by one alone")
def test_a_port_is_kept_for_the_server_that_names_it(held: ExitStack) -> None:
    """Or it could go to any connection that is made before that server is there."""
    port = settle("127.0.0.1", {"--http-port": 0}, held)["--http-port"]
    with socket.socket() as by_chance, pytest.raises(OSError, match="in use"):
        by_chance.bind(("127.0.0.1", port))
    for _ in range(2):  # started, and started again
        server = grpc.server(ThreadPoolExecutor(1), options=(("grpc.so_reuseport", 0),))
        assert server.add_insecure_port(f"127.0.0.1:{port}") == port
        server.start()
        server.stop(None).wait(60)
        with socket.create_server(("127.0.0.1", port)), socket.socket() as client:
            client.connect(("127.0.0.1", port))


@pytest.mark.skipif(sys.platform != "linux", reason="there a bound port is bound by one alone")
def test_a_port_is_kept_again_once_its_server_has_died(held: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        keeper = PortKeeper([("127.0.0.1", port)])
        held.callback(keeper.close)
        keeper.keep()  # nothing to take yet
    for _ in range(2):
        keeper.keep()
        with socket.socket() as by_chance, pytest.raises(OSError, match="in use"):
            by_chance.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)), socket.socket() as client:
            client.connect(("127.0.0.1", port))


def test_a_port_in_use_is_refused_by_its_option_and_number(held: ExitStack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"--http-port {port} on 127.0.0.1 cannot be used"):
            settle("127.0.0.1", {"--http-port": port}, held)


def test_one_port_for_two_options_is_refused(held: ExitStack) -> None:
    free = settle("127.0.0.1", {"--a": 0}, held)["--a"]
    with pytest.raises(StartError, match="--b"):
        settle("127.0.0.1", {"--a": free, "--b": free}, held)


def test_a_host_that_is_no_address_is_refused(held: ExitStack) -> None:
    with pytest.raises(StartError, match=r"--host no\.such\.host\.invalid"):
        settle("no.such.host.invalid", {"--http-port": 0}, held)
