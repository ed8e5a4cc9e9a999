"""A process that parses large bodies and tokenises long texts.

Parsing JSON holds the interpreter lock for the whole document, and the tokenizer library holds it
while it drops what it made. For 12 MB that is half a second, in which no stream would go on.
"""

import asyncio
import contextlib
import logging
import pickle
import socket
import subprocess
import sys
from pathlib import Path

from baton.api.errors import RETRY_AFTER_S
from baton.api.large.held_bytes import BodyFile
from baton.api.large.job import LENGTH, Job, Refused, Result
from baton.api.large.turns import Turns
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.supervised import child, child_thread
from baton.text.template_options import TemplateOptions

log = logging.getLogger(__name__)

DEADLINE_S = 300.0
"""The time for one job: 32 MB of one word take two minutes."""
WAIT_S = 600.0
"""The time to wait for other jobs."""
SHORT_BYTES = 1 << 20
"""A job of so few bytes is over before another process could be started."""


class LargeRequestProcess:
    """The process, started before the first job or for it. Jobs take turns, the smallest first."""

    def __init__(
        self,
        folder: Path,
        template: TemplateOptions | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """folder: the tokenizer's. template: what is different from its templates."""
        self._folder = folder
        self._template = template or TemplateOptions()
        self._deadline_s = deadline_s
        self._turns = Turns()
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def start(self) -> None:
        """Start the process if it does not run."""
        if self._socket is None:
            self._start()

    async def run(self, job: Job, data: BodyFile) -> Result:
        """Return the result of a job. data: the body or text; the caller closes it.

        Raises `ApiError` as the job does, and OVERLOADED where the process was lost, took too long
        or had no time. A job that is cancelled while it waits is never begun. A large one that is
        cancelled later ends the process, and the next job starts another.
        """
        try:
            async with asyncio.timeout(WAIT_S) as waiting, self._turns.turn(data.size):
                waiting.reschedule(None)
                return await self._run(job, data)
        except TimeoutError as error:
            raise _failed(f"other large requests have been read for {WAIT_S:g} s") from error

    async def _run(self, job: Job, data: BodyFile) -> Result:
        task = child(self._ask(job, data))
        try:
            found = await asyncio.shield(task)
        except asyncio.CancelledError:
            if data.size > SHORT_BYTES:
                task.cancel()
            while not task.done():  # the process has one job at a time
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if task.cancelled():
                self.end()
            raise
        if isinstance(found, Refused):
            raise found.error()
        return found

    async def _ask(self, job: Job, data: BodyFile) -> Result:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._exchange(job, data)
        except (OSError, EOFError) as error:  # TimeoutError is one
            self.end()
            raise _failed(
                "the process that reads large requests was lost, or took longer than "
                f"{self._deadline_s:g} s"
            ) from error

    async def _exchange(self, job: Job, data: BodyFile) -> Result:
        """Send a job and return its result. Raises OSError or EOFError for a lost process."""
        loop = asyncio.get_running_loop()
        if self._child is not None and self._child.poll() is not None:
            self.end()  # it was lost between two jobs
        end = self._socket or self._start()
        message = pickle.dumps(job)
        # The socket is empty between jobs: a few bytes have room.
        socket.send_fds(end, [LENGTH.pack(len(message))], [data.descriptor])
        await loop.sock_sendall(end, message)
        (size,) = LENGTH.unpack(await _received(end, LENGTH.size))
        found: Result = pickle.loads(await _received(end, size))
        return found

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        number = theirs.fileno()
        command = [
            sys.executable,
            "-m",
            "baton.api.large_child",
            str(self._folder),
            str(number),
            self._template.to_json(),
        ]
        with theirs:
            self._socket = ours
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[number])
        self._child = process
        # Whoever ends it: until somebody waits, it stays in the list of processes. Also, its memory
        # is freed before it is gone, which may take a moment.
        child_thread(lambda: _wait_for(process), "end of a process", _not_ended)
        return ours

    def end(self) -> None:
        """End the process. A job that it has fails."""
        process, self._child = self._child, None
        end, self._socket = self._socket, None
        if end is not None:
            end.close()
        if process is not None:
            process.kill()


def _wait_for(process: "subprocess.Popen[bytes]") -> None:
    process.wait()


def _not_ended(error: Exception) -> None:
    """Log that a killed process stays in the list of processes. Nothing waits for it."""
    log.error("the end of a process was not seen: %s: %s", type(error).__name__, error)


async def _received(end: socket.socket, size: int) -> bytearray:
    """Read so many bytes. Raises EOFError where they end earlier."""
    loop = asyncio.get_running_loop()
    found = bytearray(size)
    rest = memoryview(found)
    while rest:
        count = await loop.sock_recv_into(end, rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return found


def _failed(why: str) -> ApiError:
    return ApiError(
        ErrorCode.OVERLOADED,
        f"{why}; send it again later, or a shorter one",
        retry_after_s=RETRY_AFTER_S,
    )
