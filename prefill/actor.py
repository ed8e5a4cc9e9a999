"""The prefill worker as the class that `deploy` starts."""

from baton.core.supervised import ProcessSupervisor
from baton.prefill.service import PrefillService
from baton.worker.actor import WorkerActor
from baton.worker.config import WorkerConfig


class PrefillActor(WorkerActor):
    """A worker with the prefill role. Its methods block, see `WorkerActor`."""

    def __init__(self, config: WorkerConfig, owner: ProcessSupervisor) -> None:
        super().__init__(config, PrefillService, owner)
