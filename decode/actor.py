"""The decode worker as the class that `deploy` starts."""

from baton.core.supervised import ProcessSupervisor
from baton.decode.service import DecodeService
from baton.worker.actor import WorkerActor
from baton.worker.config import WorkerConfig


class DecodeActor(WorkerActor):
    """A worker with the decode role. Its methods block, see `WorkerActor`."""

    def __init__(self, config: WorkerConfig, owner: ProcessSupervisor) -> None:
        super().__init__(config, DecodeService, owner)
