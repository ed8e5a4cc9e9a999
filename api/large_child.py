"""The process that reads large requests, `baton.api.large_child FOLDER DESCRIPTOR OPTIONS`.

It gets jobs from a socket, one at a time, each with the file that holds its body or text, until the
socket ends. `process` has the other end.
"""

import asyncio
import contextlib
import os
import pickle
import resource
import signal
import socket
import sys
from array import array
from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

# The classes of bodies add their fields, which errors about the bodies of other endpoints name.
import baton.api.anthropic.body
import baton.api.openai.chat_schema
import baton.api.openai.completion_schema
import baton.api.responses.body
import baton.api.sglang.schema  # noqa: F401
from baton.api.backend import ModelInfo
from baton.api.large.job import LENGTH, EncodeJob, Job, Parsed, ParseJob, Refused, Result
from baton.api.prepared import Prepared
from baton.api.schema import parse_body
from baton.api.text_service import TextService
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.text.chat_template import ChatTemplate
from baton.text.template_options import TemplateOptions
from baton.text.tokenizer import Tokenizer

NICENESS = 10
"""Streams of other clients go first where all cores are busy."""
MEMORY = 6 << 30
"""The most memory, in bytes. A token takes some 150 bytes while it is made, so that a text of 32 MB
that has one token a byte would take 5 GB."""
MAX_REST = 1 << 19
"""The most bytes of a body without its prompts, as it is sent to the server: it holds the server's
interpreter lock for 70 ms a megabyte while it is read."""
MAX_REPLY = 64 << 20


@runtime_checkable
class LargeBody(Protocol):
    """A body with prompts."""

    async def prepare(
        self, text: TextService, models: Sequence[ModelInfo], owner: str | None
    ) -> tuple[Self, Prepared]:
        """Return the body without its prompts, and what was made of them. Raises `ApiError`.

        owner: the name of the API key, as in `GenerateRequest`.
        """
        ...


def main() -> None:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both ends
    folder, number, given = sys.argv[1:]
    options = TemplateOptions.from_json(given)
    tokenizer = Tokenizer.from_folder(folder, options)
    template = ChatTemplate.from_folder(folder, options)
    text = TextService(tokenizer, template, alone=True)
    with asyncio.Runner() as runner, socket.socket(fileno=int(number)) as end:
        while (job := _next_job(end)) is not None:
            done = pickle.dumps(runner.run(_done(text, *job)))
            del job
            with contextlib.suppress(ConnectionError):  # the server has left
                end.sendall(LENGTH.pack(len(done)))
                end.sendall(done)
            del done


def _next_job(end: socket.socket) -> tuple[Job, bytes] | None:
    """Return the next job with its data; None at the end of the socket."""
    try:
        head, files, _, _ = socket.recv_fds(end, LENGTH.size, 1)
    except ConnectionError:  # it left without reading the last result
        return None
    if not head:
        return None
    (size,) = LENGTH.unpack(head)
    with open(files[0], "rb") as file:
        file.seek(0)
        data = file.read()
    with end.makefile("rb") as messages:
        job: Job = pickle.loads(messages.read(size))
    return job, data


async def _done(text: TextService, job: Job, data: bytes) -> Result:
    try:
        if isinstance(job, EncodeJob):
            ids = await text.encode(
                data.decode(),
                add_special_tokens=job.add_special_tokens,
                param=job.param,
                most=job.most,
                scope=job.scope,
            )
            return array("i", ids)
        return await _parsed(text, job, data)
    except ApiError as error:
        return Refused.of(error)
    except MemoryError:
        why = "the request takes too much memory to be read; send a smaller one"
        return Refused.of(ApiError(ErrorCode.TOO_LARGE, why))


async def _parsed(text: TextService, job: ParseJob, data: bytes) -> Parsed:
    body, prepared = parse_body(job.kind, data, job.unknown), Prepared()
    if isinstance(body, LargeBody):
        body, prepared = await body.prepare(text, job.models, job.owner)
    rest = len(pickle.dumps(body))
    if rest > MAX_REST:
        raise ApiError(
            ErrorCode.TOO_LARGE,
            f"the body has {rest} bytes besides its prompts; send less",
            expected=f"at most {MAX_REST} bytes",
            actual=str(rest),
        )
    if len(prepared.reply) > MAX_REPLY:
        raise ApiError(
            ErrorCode.TOO_LARGE,
            f"the reply would have {len(prepared.reply)} bytes; send a shorter text",
            expected=f"at most {MAX_REPLY} bytes",
            actual=str(len(prepared.reply)),
        )
    return Parsed(body, prepared)


if __name__ == "__main__":
    main()
