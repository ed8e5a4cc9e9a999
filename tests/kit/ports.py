"""Ports for processes that a test starts with a number given in advance."""

import random
import socket
from contextlib import suppress

_NUMBERS = range(30_000, 32_768)
_DRAWS = random.SystemRandom()  # two processes that a seed has made alike draw different ones


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of `host` that nobody has.

    It lies below those that Linux gives to whoever asks for any, so that no test that runs at the
    same time gets it before the process that it is meant for.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in _DRAWS.sample(_NUMBERS, len(_NUMBERS)):
        with suppress(OSError), socket.create_server((host, port), family=family):
            return port
    raise AssertionError(f"no port of {host} in {_NUMBERS} is free")
