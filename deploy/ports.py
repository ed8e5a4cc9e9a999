"""TCP ports, chosen and checked before anything starts."""

import socket
from contextlib import ExitStack

from baton.deploy.errors import StartError


def settle(host: str, wanted: dict[str, int]) -> dict[str, int]:
    """A port for each option's name: the one given, found free, or any free one where it is 0.

    They are known before the processes that bind them start, so workers and router start at once,
    and a router that Ray restarts comes back where its workers look for it.
    Raises StartError that names the option.
    """
    with ExitStack() as held:  # all held until all are known: no port is given twice
        return {option: _bind(held, host, option, port) for option, port in wanted.items()}


def _bind(held: ExitStack, host: str, option: str, port: int) -> int:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as err:
        raise StartError(
            f"--host {host} is not an address of this machine ({err.strerror}); "
            "use 127.0.0.1 for this machine alone, 0.0.0.0 for every network"
        ) from err
    probe = held.enter_context(socket.socket(address[0], socket.SOCK_STREAM))
    # As the servers do: a port that only lingers in TIME_WAIT is free.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address[4])
        probe.listen()  # or SO_REUSEADDR would let another option have it too
    except OSError as err:
        raise StartError(
            f"{option} {port} on {host} cannot be used ({err.strerror}); "
            f"stop what listens there, or choose another port ({option} 0: any free one)"
        ) from err
    return int(probe.getsockname()[1])
