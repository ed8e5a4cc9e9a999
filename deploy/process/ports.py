"""TCP ports that are chosen, checked and reserved before anything starts."""

import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from baton.deploy.errors import StartError


def settle(
    host: str, wanted: dict[str, int], held: ExitStack, host_option: str = "--host"
) -> dict[str, int]:
    """Return a port for each option's name: the given one, or any free one where it is 0.

    All ports are known before the processes that bind them start. Workers and router therefore
    start at once, and a restarted router comes back at the address that its workers know.

    Until `held` is closed the kernel does not give these ports to processes that ask for any free
    port; a server that names the port can still bind it.

    host_option: the option that gave `host`. Raises StartError that names the option at fault.
    """
    with ExitStack() as probes:  # all are held until all are known, so that no port is given twice
        found = {
            option: _bind(probes, (host_option, host), option, port, listen=True)
            for option, port in wanted.items()
        }
    if sys.platform == "linux":  # other systems let only one process bind a port
        for option, port in found.items():
            _bind(held, (host_option, host), option, port, listen=False)
    return found


class PortKeeper:
    """Ports that servers of other processes name, kept for them while nobody listens there.

    A port on which somebody listens cannot be bound beside it. `keep` therefore has to be called
    again and again: it takes each port when its server has died, before the server is back.
    """

    def __init__(self, addresses: Iterable[tuple[str, int]]) -> None:
        """addresses: hosts and ports."""
        self._missing = set(addresses) if sys.platform == "linux" else set()
        self._held = ExitStack()

    def keep(self) -> None:
        """Bind the ports that are free now, and are not kept yet."""
        for address in sorted(self._missing):
            with suppress(StartError):  # its server listens
                _bind(self._held, ("", address[0]), "", address[1], listen=False)
                self._missing.discard(address)

    def close(self) -> None:
        self._held.close()


def _bind(
    held: ExitStack, host_given: tuple[str, str], option: str, port: int, *, listen: bool
) -> int:
    host_option, host = host_given
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as err:
        raise StartError(
            f"{host_option} {host} is not an address of this machine ({err.strerror}); "
            "use 127.0.0.1 for this machine alone, 0.0.0.0 for every network"
        ) from err
    probe = held.enter_context(socket.socket(address[0], socket.SOCK_STREAM))
    # As the servers do: a port in TIME_WAIT, or one without a listener, may be bound again.
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind(address[4])
        if listen:  # otherwise another option could get it too
            probe.listen()
    except OSError as err:
        raise StartError(
            f"{option} {port} on {host} cannot be used ({err.strerror}); "
            f"stop what listens there, or choose another port ({option} 0: any free one)"
        ) from err
    return int(probe.getsockname()[1])
