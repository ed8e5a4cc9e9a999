"""A model whose steps fail as they are told to."""

from collections.abc import Callable

from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.model import Model
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class FaultyModel:
    """A `Model` that runs `fault` behind the operations of each step, on the step's stream."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.fault: Callable[[ForwardBatch], None] | None = None

    @property
    def config(self) -> ModelConfig:
        return self._model.config

    @property
    def kernels(self) -> Kernels:
        return self._model.kernels

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return self._model.needs_cpu_seq_lens

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.step.model.Model`."""
        return self._model.plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step; see `baton.engine.step.model.Model`."""
        logits = self._model.forward(batch, states, pages)
        if self.fault is not None:
            self.fault(batch)
        return logits

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the last hidden states of sequences; see `baton.engine.step.model.Model`."""
        return self._model.hidden_before(states, slots)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row; see `baton.engine.step.model.Model`."""
        return self._model.draft(batch, states, pages)

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens; see `baton.engine.step.model.Model`."""
        self._model.commit(batch, states, accepted)
