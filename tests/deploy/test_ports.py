"""Ports are chosen, and checked, before anything starts."""

import socket

import pytest

from baton.deploy.errors import StartError
from baton.deploy.ports import settle


def test_every_option_that_asks_for_any_port_gets_one_of_its_own() -> None:
    ports = settle("127.0.0.1", {f"--port-{i}": 0 for i in range(20)})
    assert len(set(ports.values())) == 20 and all(ports.values())


def test_a_free_port_is_given_as_asked_and_is_free_again_after() -> None:
    free = settle("127.0.0.1", {"--http-port": 0})["--http-port"]
    assert settle("127.0.0.1", {"--http-port": free}) == {"--http-port": free}


def test_a_port_in_use_is_refused_by_its_option_and_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=rf"--http-port {port} on 127.0.0.1 cannot be used"):
            settle("127.0.0.1", {"--http-port": port})


def test_one_port_for_two_options_is_refused() -> None:
    free = settle("127.0.0.1", {"--a": 0})["--a"]
    with pytest.raises(StartError, match="--b"):
        settle("127.0.0.1", {"--a": free, "--b": free})


def test_a_host_that_is_no_address_is_refused() -> None:
    with pytest.raises(StartError, match=r"--host no\.such\.host\.invalid"):
        settle("no.such.host.invalid", {"--http-port": 0})
