"""TCP ports, chosen, checked and kept before anything starts."""

import socket
import sys
from contextlib import ExitStack

from baton.deploy.errors import StartError


def settle(host: str, wanted: dict[str, int], held: ExitStack) -> dict[str, int]:
    """A port for each option's name: the one given, found free, or any free one where it is 0.

    They are known before the processes that bind them start, so workers and router start at once,
    and a router that Ray restarts comes back where its workers look for it. Until `held` is closed
    the kernel gives them to nobody who asks for any port, as Ray's processes and every connection
    do: a server that names one has it all the same.
    Raises StartError that names the option.
    """
    with ExitStack() as probes:  # all held until all are known: no port is given twice
        found = {
            option: _bind(probes, host, option, port, listen=True)
            for option, port in wanted.items()
        }
    if sys.platform == "linux":  # elsewhere a port that is bound is bound by one alone
        for option, port in found.items():
            _bind(held, host, option, port, listen=False)
    return found


def _bind(held: ExitStack, host: str, option: str, port: int, *, listen: bool) -> int:
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as err:
        raise StartError(
            f"--host {host} is not an address of this machine ({err.strerror}); "
            "use 127.0.0.1 for this machine alone, 0.0.0.0 for every network"
        ) from err
    probe = held.enter_context(socket.socket(address[0], socket.SOCK_STREAM))
    # As the servers do: a port that only lingers in TIME_WAIT is free, and one where nobody listens
    # may be bound again.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address[4])
        if listen:  # or another option could have it too
            probe.listen()
    except OSError as err:
        raise StartError(
            f"{option} {port} on {host} cannot be used ({err.strerror}); "
            f"stop what listens there, or choose another port ({option} 0: any free one)"
        ) from err
    return int(probe.getsockname()[1])
