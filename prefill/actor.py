"""The prefill worker, as `deploy` starts it."""

from baton.prefill.service import PrefillService
from baton.worker.actor import WorkerActor
from baton.worker.config import WorkerConfig


class PrefillActor(WorkerActor):
    """Methods block; see `WorkerActor`."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, PrefillService)
