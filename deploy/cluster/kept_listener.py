"""The listening HTTP socket of a cluster's only router, which outlives it.

Whoever runs the cluster makes the socket and gives it to each life of the router. Between two lives
the kernel keeps new connections, so that clients wait for the next one where they would be refused.
With several routers there is none: others serve meanwhile, and a refusal tells clients to go there.
"""

import socket
import socketserver
import tempfile
from contextlib import ExitStack
from pathlib import Path

from baton.api.server.http_server import bound
from baton.core.errors import ConfigError
from baton.core.supervised import ProcessSupervisor
from baton.deploy.errors import StartError
from baton.deploy.messages.control import serving

_TAKEN_S = 5.0


def keep_listener(host: str, port: int, owner: ProcessSupervisor, held: ExitStack) -> Path:
    """Bind an address until `held` is closed; return the Unix socket at which routers `take` that.
    The first of them listens. Raises StartError.
    """
    try:
        listener = held.enter_context(bound(host, port))
    except ConfigError as err:
        raise StartError(str(err)) from err

    class Giver(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            socket.send_fds(self.request, [b"."], [listener.fileno()])

    folder = held.enter_context(tempfile.TemporaryDirectory(prefix="baton-"))
    path = Path(folder) / "listener"  # a folder that this user alone can enter
    held.enter_context(serving(path, Giver, owner))
    return path


def take(path: Path) -> int | None:
    """Return a descriptor of the kept socket; None if whoever kept it has ended."""
    try:
        with socket.socket(socket.AF_UNIX) as giver:
            giver.settimeout(_TAKEN_S)
            giver.connect(str(path))
            _, descriptors, _, _ = socket.recv_fds(giver, 1, 1)
    except OSError:
        return None
    return descriptors[0] if descriptors else None
