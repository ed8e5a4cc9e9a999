"""The TCP connections of this process, by the process at the other end; they can be ended."""

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

_MOST = 4096  # notes, before those of connections that have ended are dropped

_CALLER = ("ipv4:", "ipv6:")  # how gRPC spells the address of a server's client

Endpoint = tuple[str, int]
"""An IP address, IPv4 where an IPv6 address stands for one, and a port."""


class Connections:
    """Notes on who is at the other end of which connection. Thread-safe.

    gRPC has no call that ends one connection of a server, nor one that tells which connections a
    channel has. A socket that is shut down here ends like one whose peer has died.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by the other end's address, as `note` got it
        self._lock = threading.Lock()

    def note(self, address: str, name: str) -> None:
        """Note that `name` is at `address`: `host:port`, or a peer as gRPC spells it."""
        with self._lock:
            if len(self._names) >= _MOST and address not in self._names:
                present = {endpoint for endpoint, _, _ in open_connections()}
                self._names = {
                    each: named
                    for each, named in self._names.items()
                    if present & set(_endpoints(each))
                }
            self._names[address] = name

    def cut(self, unwanted: Callable[[str], bool]) -> set[str]:
        """End the connections to all whose names are unwanted. Return those names."""
        found = dict[Endpoint, str]()
        with self._lock:
            for address, name in list(self._names.items()):
                if unwanted(name):
                    found |= dict.fromkeys(_endpoints(address), name)
                    if address.startswith(_CALLER):
                        # Another caller may have this port next; this one is noted when it calls.
                        # One that was dialled stays: its channels connect again by themselves.
                        del self._names[address]
        if not found:
            return set()
        cut = set[str]()
        for endpoint, _, connection in open_connections():
            if endpoint in found:
                cut.add(found[endpoint])
                connection.shutdown(socket.SHUT_RDWR)
        return cut


def endpoint_of_caller(peer: str) -> Endpoint:
    """Return the endpoint of a server's client as gRPC spells it: `ipv4:127.0.0.1:80`, or
    `ipv6:%5B::1%5D:80`, also with brackets.
    """
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return _endpoint((host.strip("[]"), port))


def _endpoints(address: str) -> list[Endpoint]:
    """Return the endpoints that an address names; none where it cannot be resolved."""
    if address.startswith(_CALLER):
        return [endpoint_of_caller(address)]
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [_endpoint(each[4]) for each in found]


def _endpoint(name: tuple[Any, ...]) -> Endpoint:
    """Return the endpoint that the socket module gave."""
    found = ipaddress.ip_address(name[0].partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found), int(name[1])


def open_connections() -> Iterator[tuple[Endpoint, int, socket.socket]]:
    """Yield the other end of each TCP connection of this process, the port at this end, and a
    socket to use at once.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            # A copy, so that the number cannot come to mean another file meanwhile.
            copied = os.dup(int(name))
        except OSError:  # it was closed meanwhile
            continue
        try:
            connection = socket.socket(fileno=copied)
        except OSError:  # no socket
            os.close(copied)
            continue
        with connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                endpoint = _endpoint(connection.getpeername())
                yield endpoint, connection.getsockname()[1], connection
            except OSError:  # it listens, or has ended
                continue
