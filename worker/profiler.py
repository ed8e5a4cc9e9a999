"""Profiles of one worker's engine: one at a time, bounded, each in a file of its own."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.supervised import child
from baton.worker.engine_port import EnginePort
from baton.worker.engine_profile import EngineProfile, ProfileLimits

log = logging.getLogger(__name__)

MOST_FILES = 16
"""Traces of one worker in the folder; the oldest goes when another one is written."""
MAX_BYTES = 1 << 30
"""A larger file is not kept: who asks for so much should ask for fewer steps."""
SUFFIX = ".trace.json.gz"


@dataclass(frozen=True)
class Profiled:
    """A profile that was written."""

    file: Path
    steps: int  # that it covers
    size: int  # bytes


class Profiler:
    """Starts and stops profiles of the engine. Every method is called on the asyncio thread."""

    def __init__(
        self, port: EnginePort, device: torch.device, worker_id: str, folder: Path | None
    ) -> None:
        """folder: for the traces; made at the first use. None: this worker makes no profiles."""
        self._port = port
        self._device = device
        self._worker_id = worker_id
        self._folder = folder
        self._running: EngineProfile | None = None
        self._writing: asyncio.Task[Profiled] | None = None  # of the newest profile, once it ended
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, limits: ProfileLimits) -> None:
        """Begin a profile. Raises ApiError CONFLICT while another one is recorded or written."""
        if self._running is not None or (self._writing is not None and not self._writing.done()):
            raise self._error(
                ErrorCode.CONFLICT,
                f"a profile of {self._worker_id} runs already; stop it first, or wait for its end",
            )
        if self._folder is None:
            raise self._error(
                ErrorCode.INVALID_REQUEST,
                f"{self._worker_id} has no folder for profiles; start it with --profile-folder",
            )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._error(
                ErrorCode.INTERNAL, f"cannot make {self._folder} for profiles: {error}"
            ) from error
        self._writing = None
        running = self._running = EngineProfile(limits, self._device)
        loop = asyncio.get_running_loop()

        def stepped() -> None:
            if running.step():
                loop.call_soon_threadsafe(self._finish, running)

        try:
            await self._port.call(lambda engine: running.start())
        except BaseException:
            self._running = None
            raise
        self._port.watch_steps(stepped)
        self._timer = loop.call_later(limits.seconds, self._finish, running)

    async def stop(self) -> Profiled:
        """End the profile, unless it has ended by itself, and return where it is.

        Raises ApiError: CONFLICT if there is none that was not stopped yet, TOO_LARGE if it was too
        large to keep, INTERNAL if it could not be written.
        """
        if self._running is not None:
            self._finish(self._running)
        if self._writing is None:
            raise self._error(
                ErrorCode.CONFLICT,
                f"no profile of {self._worker_id} was started; call /start_profile first",
            )
        writing = self._writing
        try:
            return await asyncio.shield(writing)
        except OSError as error:
            raise self._error(
                ErrorCode.INTERNAL, f"the profile could not be written: {error}"
            ) from error
        finally:
            if writing.done() and self._writing is writing:
                self._writing = None

    async def close(self) -> None:
        """End what is recorded, without a file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _finish(self, ending: EngineProfile) -> None:
        """Write a profile that runs, on a task. Does nothing for one that has ended before."""
        if self._running is not ending:
            return
        self._running = None
        self._port.watch_steps(None)
        if self._timer is not None:
            self._timer.cancel()
        self._writing = child(self._written(ending))
        self._writing.add_done_callback(_log_failure)

    async def _written(self, ended: EngineProfile) -> Profiled:
        await self._port.call(lambda engine: ended.stop())
        path = self._new_path()
        size = await asyncio.to_thread(ended.write, path)
        if size > MAX_BYTES:
            path.unlink()
            raise self._error(
                ErrorCode.TOO_LARGE,
                f"the trace of {ended.steps} steps has {size >> 20} MiB, more than the "
                f"{MAX_BYTES >> 20} that are kept; ask for fewer num_steps",
            )
        log.info("profile written", extra={"file": str(path), "bytes": size})
        return Profiled(path, ended.steps, size)

    def _new_path(self) -> Path:
        """Return the file of the next trace; remove the oldest of too many."""
        assert self._folder is not None
        earlier = sorted(self._folder.glob(f"{self._worker_id}-2*{SUFFIX}"))
        for old in earlier[: max(len(earlier) + 1 - MOST_FILES, 0)]:
            old.unlink(missing_ok=True)
        at = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        return self._folder / f"{self._worker_id}-{at}{SUFFIX}"

    def _error(self, code: ErrorCode, message: str) -> ApiError:
        return ApiError(code, message, origin=self._worker_id)


def _log_failure(task: "asyncio.Task[Profiled]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a profile was lost: %s: %s", type(error).__name__, error)
