"""Ending TCP connections by who is at their other end."""

import socket

import pytest

from baton.rpc import connections as connections_module
from baton.rpc.connections import Connections


def pair(family: int = socket.AF_INET, host: str = "127.0.0.1") -> tuple[socket.socket, ...]:
    """Return both ends of a connection, ours first."""
    with socket.create_server((host, 0), family=family) as listener:
        theirs = socket.create_connection(listener.getsockname()[:2])
        ours, _ = listener.accept()
    for each in (ours, theirs):
        each.settimeout(60)
    return ours, theirs


def peer_of(ours: socket.socket) -> str:
    host, port = ours.getpeername()[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_only_the_connections_of_the_unwanted_end(family: int, host: str) -> None:
    wanted, wanteds_other_end = pair(family, host)
    unwanted, unwanteds_other_end = pair(family, host)
    connections = Connections()
    connections.note(peer_of(wanted), "good")
    connections.note(peer_of(unwanted), "bad")
    assert connections.cut(lambda name: name == "bad") == {"bad"}
    assert unwanteds_other_end.recv(1) == b""
    wanted.sendall(b"x")
    assert wanteds_other_end.recv(1) == b"x"
    for each in (wanted, wanteds_other_end, unwanted, unwanteds_other_end):
        each.close()


def test_a_dialled_name_is_found_by_its_address() -> None:
    ours, theirs = pair()
    connections = Connections()
    connections.note(f"localhost:{theirs.getpeername()[1]}", "bad")
    assert connections.cut(lambda name: True) == {"bad"}
    assert theirs.recv(1) == b""
    ours.close()
    theirs.close()
    assert connections.cut(lambda name: True) == set(), "it has ended"


def test_notes_of_connections_that_have_ended_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "_MOST", 3)
    ours, theirs = pair()
    connections = Connections()
    connections.note(peer_of(ours), "here")
    for port in range(1, 9):
        connections.note(f"ipv4:127.0.0.1:{port}", "gone")
    assert len(connections._names) <= 3
    assert connections.cut(lambda name: name == "here") == {"here"}
    ours.close()
    theirs.close()
