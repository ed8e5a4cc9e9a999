"""The decode worker, as `deploy` starts it."""

from baton.decode.service import DecodeService
from baton.worker.actor import WorkerActor
from baton.worker.config import WorkerConfig


class DecodeActor(WorkerActor):
    """Methods block; see `WorkerActor`."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config, DecodeService)
