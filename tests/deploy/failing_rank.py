"""A decode worker whose grants fail when the test wants it."""

import asyncio
import time
from pathlib import Path
from threading import Thread

from broken_works import fail, work_of

from baton.core.supervised import ProcessSupervisor
from baton.decode.actor import DecodeActor
from baton.worker.config import WorkerConfig
from baton.worker.runtime import WorkerStarted

LOOK_S = 0.05


class FailingRank(DecodeActor):
    """A `WorkerServed` that removes the file `fail`, and fails, once that lies in its folder of
    profiles."""

    def __init__(self, config: WorkerConfig, owner: ProcessSupervisor) -> None:
        super().__init__(config, owner)
        assert config.profile_folder is not None
        self._wanted = config.profile_folder / "fail"

    def start(self) -> WorkerStarted:
        started = super().start()
        Thread(target=self._look, args=(self._wanted,), daemon=True).start()
        return started

    def _look(self, wanted: Path) -> None:
        while not wanted.exists():
            time.sleep(LOOK_S)
        wanted.unlink()
        asyncio.run_coroutine_threadsafe(self._fail(), self._loop)

    async def _fail(self) -> None:
        await fail(await work_of(self._owner, "grants"))
