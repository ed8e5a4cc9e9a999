"""A dump of the requests that a router has answered, for `baton replay`."""

import logging
import os
import queue
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TextIO

from baton.api.backend import GenerateRequest
from baton.core.errors import ConfigError
from baton.core.supervised import child_thread
from baton.router.dump.block_ids import BLOCK, BlockIds
from baton.router.dump.dump_options import DumpOptions
from baton.router.dump.request_record import (
    SUFFIX,
    DumpHeader,
    RequestRecord,
    sampling_lengths,
    sampling_values,
)

log = logging.getLogger(__name__)

MOST_WAITING = 4096
"""Requests that wait to be written; further ones are left out and counted."""
CLOSE_S = 10.0


@dataclass(frozen=True)
class _Ended:
    request: GenerateRequest
    arrived: float  # on the dump's clock
    output_tokens: int
    outcome: str


class RequestDump:
    """A file of its own for each start of a router, in a folder.

    `ended` never waits: a thread hashes the prompts and writes. The file ends, with a warning in
    the log, when it is full or cannot be written; the router serves on.
    """

    def __init__(
        self, file: TextIO, model: str, options: DumpOptions, clock: Callable[[], float]
    ) -> None:
        self._file = file
        self._options = options
        self._began = clock()
        self._waiting: queue.Queue[_Ended | None] = queue.Queue(MOST_WAITING)
        self._blocks = BlockIds()
        self._salts: dict[bytes, int] = {b"": 0}
        self._left = options.max_bytes
        self.left_out = 0
        """Requests that were not written, because too many waited."""
        self._put(DumpHeader(model, time.time(), BLOCK, not options.prompts).line())
        self._thread = child_thread(self._run, "request-dump", self._failed)

    @classmethod
    def open(cls, options: DumpOptions, model: str, clock: Callable[[], float]) -> Self:
        """Make the file, readable by this user alone. Raises ConfigError if that fails.

        options: with a folder. clock: monotonic, in seconds; that of `ended`.
        """
        folder = options.folder
        if folder is None:
            raise ConfigError("a request dump has no place; name a folder that this user may write")
        at = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = folder / f"{at}-{secrets.token_hex(3)}{SUFFIX}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write a request dump to {folder}: {error.strerror}; name a "
                "folder that this user may write"
            ) from error
        return cls(os.fdopen(made, "w"), model, options, clock)

    def ended(
        self, request: GenerateRequest, arrived: float, output_tokens: int, outcome: str
    ) -> None:
        """Record a request that has ended. arrived: on the clock."""
        try:
            self._waiting.put_nowait(_Ended(request, arrived, output_tokens, outcome))
        except queue.Full:
            self.left_out += 1

    def close(self) -> None:
        """Write what waits, and close the file. Blocks for `CLOSE_S` at most."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            log.warning("the request dump is too slow: its last requests are lost")
            return
        self._thread.join(CLOSE_S)
        if self.left_out:
            log.warning("the request dump lacks %d requests: they came too fast", self.left_out)

    def _run(self) -> None:
        with self._file:
            while (ended := self._waiting.get()) is not None:
                if self._left <= 0:
                    continue  # `ended` must not find the queue full and count these as too fast
                try:
                    self._put(self._record(ended).line())
                except OSError as error:
                    self._stop(f"cannot be written: {error}")

    def _failed(self, error: Exception) -> None:
        """End the dump after a fault, as the router serves on without one."""
        self._stop(f"has failed: {type(error).__name__}: {error}")
        while self._waiting.get() is not None:
            pass  # as in `_run`

    def _put(self, line: str) -> None:
        """Write a line, unless it does not fit."""
        self._left -= len(line)  # JSON in ASCII: a byte a character
        if self._left < 0:
            self._stop(f"is full: it has {self._options.max_bytes >> 20} MiB")
            return
        self._file.write(line)
        self._file.flush()

    def _stop(self, why: str) -> None:
        self._left = 0
        log.warning("the request dump %s; no further request is recorded", why)

    def _record(self, ended: _Ended) -> RequestRecord:
        request, redacted = ended.request, not self._options.prompts
        salt = request.cache_salt
        return RequestRecord(
            round(ended.arrived - self._began, 6),
            len(request.prompt_ids),
            ended.output_tokens,
            ended.outcome,
            self._blocks.of(request.prompt_ids, salt),
            sampling_values(request.sampling, redacted=redacted),
            request.priority,
            request.routed_dp_rank,
            self._salts.setdefault(salt, len(self._salts)),
            sampling_lengths(request.sampling) if redacted else {},
            None if redacted else request.prompt_ids,
            {} if redacted or request.record is None else request.record.labels,
        )
