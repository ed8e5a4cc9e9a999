"""Tokenising long texts in a process of its own.

The tokenizer library holds the interpreter lock while it makes and drops what it found: 0.4 s for
12 MB, in which no stream of this process would go on.
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from baton.text.errors import EncodingError, LongTextError
from baton.text.long_text_child import ERROR, IDS, REPLY, REQUEST

DEADLINE_S = 300.0
"""The time for one text: 32 MB of one word take two minutes."""
MAX_WAITING_CHARS = 768 << 20
"""The most characters of texts that wait, together."""


class LongTextProcess:
    """The process, which is started for the first text. Texts take turns."""

    def __init__(self, folder: Path, deadline_s: float = DEADLINE_S) -> None:
        """folder: the tokenizer's."""
        self._folder = folder
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long texts")
        self._changing = threading.Lock()  # of the next two
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: object = None  # the text that the process has now
        self._waiting = 0  # characters

    async def encode(self, text: str, most: int, add_special_tokens: bool) -> tuple[int, ...] | int:
        """Return the ids of `text`, or their number if there are more than `most`.

        Raises EncodingError for text that is no Unicode, and LongTextError where too many texts
        wait, or the process was lost or took too long. A text that is cancelled is given up.
        """
        if self._waiting + len(text) > MAX_WAITING_CHARS:
            raise LongTextError("too many long prompts wait to be tokenised; send it again later")
        self._waiting += len(text)
        job = self._thread.submit(self._ask, text, most, add_special_tokens)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            self._give_up(text)
            raise
        finally:
            self._waiting -= len(text)

    def close(self) -> None:
        """End the process and its thread. Texts that wait or are under way fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        with self._changing:
            self._end()
        self._thread.shutdown()

    def _ask(self, text: str, most: int, special: bool) -> tuple[int, ...] | int:
        """Send one text and read the reply, on the thread."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise EncodingError("the text has a lone surrogate; expected valid Unicode") from error
        with self._changing:
            child = self._running()
            self._asked = text
        late = threading.Timer(self._deadline_s, child.kill)
        late.start()
        try:
            kind, count, body = _exchange(child, REQUEST.pack(special, most, len(data)), data)
        except (OSError, EOFError) as error:
            with self._changing:
                self._end()
            raise LongTextError(
                "the process that tokenises long prompts was lost, or took longer than "
                f"{self._deadline_s:g} s; send it again, or a shorter one"
            ) from error
        finally:
            late.cancel()
            with self._changing:
                self._asked = None
        if kind == ERROR:
            raise EncodingError(body.decode())
        return tuple(array("I", body)) if kind == IDS else count

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-m", "baton.text.long_text_child", str(self._folder)]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self._child

    def _give_up(self, text: str) -> None:
        """End the process if it has this text. One that waits is never begun."""
        with self._changing:
            if self._asked is text and self._child is not None:
                self._child.kill()

    def _end(self) -> None:
        """End the process and close its pipes."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # of what was not sent
                        pipe.close()
            child.wait()


def _exchange(child: subprocess.Popen[bytes], head: bytes, data: bytes) -> tuple[int, int, bytes]:
    """Return kind, number and body of the reply. Raises OSError or EOFError for a lost process."""
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(head)
    child.stdin.write(data)
    child.stdin.flush()
    found = child.stdout.read(REPLY.size)
    if len(found) < REPLY.size:
        raise EOFError
    kind, count = REPLY.unpack(found)
    size = {IDS: 4 * count, ERROR: count}.get(kind, 0)
    body = child.stdout.read(size)
    if len(body) < size:
        raise EOFError
    return kind, count, body
