"""The control socket, by which commands ask whoever runs a cluster to do something with it.

The socket lies in this user's own folder, so that no other user can connect. A connection carries
one request, one line of JSON: `{"request": NAME, "arguments": {...}}`. The reply is any number of
lines of progress, then one with the answer or with an error.
"""

import json
import socket
import socketserver
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

from baton.core.supervised import OnFailure, ProcessSupervisor, thread
from baton.deploy.errors import ControlError, DeployError, NotRunning, StartError
from baton.deploy.messages.start_progress import StartProgress

Handler = Callable[[Mapping[str, object], StartProgress], Mapping[str, object]]
"""Takes a request's arguments and a progress receiver; returns the answer, or raises DeployError.

Arguments and answer are JSON. Handlers run beside each other, on a thread each, and run on when the
requester disconnects.
"""

Handlers = Mapping[str, Handler]
"""Handlers by the name of their request."""

SILENCE_S = 900.0
"""Longest wait between two lines of the answer: a worker's start, or a drain."""
_LOOK_S = 0.05  # between two looks whether to end: a refused start and a stop wait for one

STOP = "stop"
DESCRIBE = "describe"
CONFIG = "config"


class _Told:
    """A `StartProgress` that sends reports to the requesting command until it disconnects."""

    def __init__(self, send: Callable[[Mapping[str, object]], None]) -> None:
        self._send = send

    def update(self, part: str, phase: str, fraction: float) -> None:
        self._send({"part": part, "phase": phase, "fraction": fraction})

    def done(self, part: str, detail: str) -> None:
        self._send({"part": part, "detail": detail})


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False


def listening(
    path: Path, handlers: Handlers, owner: ProcessSupervisor
) -> AbstractContextManager[None]:
    """Handle requests at `path` inside the context, each on its own thread. Raises StartError."""

    class RequestHandler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the requester has disconnected
                self._answer()

        def _answer(self) -> None:
            try:
                answer = _handle(self.rfile.readline(), handlers, _Told(self._tell))
            except DeployError as err:
                self._send({"error": str(err)})
            else:
                self._send({"answer": answer})

        def _tell(self, message: Mapping[str, object]) -> None:
            with suppress(OSError):  # the requested work continues without a listener
                self._send(message)

        def _send(self, message: Mapping[str, object]) -> None:
            self.wfile.write(json.dumps(message).encode() + b"\n")

    return serving(path, RequestHandler, owner)


@contextmanager
def serving(
    path: Path, handler: type[socketserver.StreamRequestHandler], owner: ProcessSupervisor
) -> Iterator[None]:
    """Take connections at `path` inside the context, each on its own thread. Raises StartError."""
    path.unlink(missing_ok=True)
    try:
        server = _Server(str(path), handler)
    except OSError as err:
        raise StartError(f"cannot listen for commands at {path}: {err}") from err
    # ANEW: each connection has a thread of its own, and the socket stays open.
    serve = partial(server.serve_forever, poll_interval=_LOOK_S)
    thread(serve, owner, OnFailure.ANEW, "control socket", may_return=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        path.unlink(missing_ok=True)


def request_line(name: str, arguments: Mapping[str, object]) -> bytes:
    """Return the line that carries a request."""
    return json.dumps({"request": name, "arguments": arguments}).encode() + b"\n"


def ask(
    path: Path, name: str, arguments: Mapping[str, object], progress: StartProgress
) -> Mapping[str, object]:
    """Send a request and return its answer.

    Raises NotRunning, or DeployError with the other side's message.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SILENCE_S)
            connection.connect(str(path))
            with connection.makefile("rwb") as lines:
                lines.write(request_line(name, arguments))
                lines.flush()
                return answer_in(lines, progress)
    except TimeoutError as err:
        raise DeployError(f"{path} did not answer for {SILENCE_S:g} s; see `baton status`") from err
    except OSError as err:
        raise NotRunning(f"no `baton serve` answers at {path}: {err}") from err


def answer_in(lines: Iterable[bytes], progress: StartProgress) -> Mapping[str, object]:
    """Report the progress in the lines of a reply, and return the answer that follows.

    Raises DeployError with the message of an error, or NotRunning if the lines end before either.
    """
    for line in lines:
        message = json.loads(line)
        if "error" in message:
            raise DeployError(message["error"])
        if "answer" in message:
            answer: Mapping[str, object] = message["answer"]
            return answer
        if "detail" in message:
            progress.done(message["part"], message["detail"])
        else:
            progress.update(message["part"], message["phase"], message["fraction"])
    raise NotRunning("the cluster ended before it answered")


def _handle(line: bytes, handlers: Handlers, progress: StartProgress) -> Mapping[str, object]:
    """Return the answer to a request. Raises DeployError."""
    try:
        request = json.loads(line)
        name, arguments = request["request"], request["arguments"]
    except (ValueError, KeyError, TypeError) as err:
        raise ControlError(
            'expected one line of JSON, {"request": NAME, "arguments": {…}}; got '
            f"{line[:80].decode(errors='replace')!r}"
        ) from err
    handler = handlers.get(name) if isinstance(name, str) else None
    if handler is None:
        known = ", ".join(sorted(handlers))
        raise ControlError(f"this cluster has no request {name!r}; it has {known}")
    if not isinstance(arguments, dict):
        raise ControlError(f"the arguments of {name} must be an object; got {arguments!r}")
    return handler(arguments, progress)
