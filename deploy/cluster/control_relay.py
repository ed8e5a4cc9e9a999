"""Requests to whoever runs a cluster, on their way from routers on other hosts.

A router passes such requests on to a Unix socket (`control.py`). On another host than the
supervisor's it has a socket of its own, whose requests an actor on the supervisor's host takes.
"""

import json
import logging
import socket
import socketserver
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from baton.core.supervised import ProcessSupervisor
from baton.deploy.cluster import ray_nodes
from baton.deploy.messages.control import SILENCE_S, serving

_NAME = "control-relay"
_AT_ONCE = 8

log = logging.getLogger(__name__)


class ControlRelay:
    """The actor on the supervisor's host."""

    def __init__(self, control: Path) -> None:
        """control: the supervisor's socket."""
        self._control = control

    def ask(self, line: bytes) -> Iterator[bytes]:
        """Send a request, and yield the lines of the reply."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(SILENCE_S)
                connection.connect(str(self._control))
                with connection.makefile("rwb") as lines:
                    lines.write(line)
                    lines.flush()
                    for reply in lines:  # noqa: UP028 - Ray sends to what it iterates over
                        yield reply
        except OSError as err:
            yield _error(f"the supervisor does not answer ({err}); Ray may be starting it again")


def start_relay(control: Path, *, detached: bool) -> Any:
    """Start the actor on this node, and return Ray's handle of it.

    control: the supervisor's socket. detached: it does not end with this process, and one that
    runs already is found instead.
    """
    outliving = {"lifetime": "detached", "get_if_exists": True} if detached else {}
    return (
        ray.remote(ControlRelay)
        .options(
            name=_NAME,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=_AT_ONCE,
            label_selector={ray_nodes.NODE_ID: ray_nodes.this_node()},
            **outliving,
        )
        .remote(control)
    )


def relaying(path: Path, owner: ProcessSupervisor) -> AbstractContextManager[None]:
    """Take requests at `path` on this host, inside the context, and pass them on to the actor.

    Raises StartError if the socket cannot be made.
    """

    class Relayed(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the requester has disconnected
                for line in _answers(self.rfile.readline()):
                    self.wfile.write(line)

    return serving(path, Relayed, owner)


def _answers(line: bytes) -> Iterable[bytes]:
    """Yield the lines of the reply to a request, the last of them an error where Ray fails."""
    try:
        relay = ray.get_actor(_NAME)
        for each in relay.ask.options(num_returns="streaming").remote(line):
            yield ray.get(each, timeout=SILENCE_S)
    except (RayError, ValueError) as err:  # ValueError: there is no such actor
        log.warning("a request to the supervisor failed: %s", err)
        yield _error(f"the supervisor's host does not answer: {type(err).__name__}")


def _error(text: str) -> bytes:
    return json.dumps({"error": text}).encode() + b"\n"
