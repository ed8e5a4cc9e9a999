"""The interface of a model to the runner."""

from typing import Protocol

from torch import Tensor

from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class Model(Protocol):
    """A loaded model, its weights on one device."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def kernels(self) -> Kernels:
        """The kernels that the device and the options call for. Sampling uses them too."""
        ...

    @property
    def needs_cpu_seq_lens(self) -> bool:
        """True if an attention backend plans by the lengths of the KV on the host."""
        ...

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan what `forward` needs beside the step's own tensors; it is packed into the
        same copy.
        """
        ...

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step, which reads and writes `states` and `pages`.

        Returns logits [L, vocab] float32 of `batch.logit_tokens`.
        """
        ...

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the recurrent states after the accepted tokens of a step that verified several a
        row, the last that `forward` ran.
        """
        ...

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the hidden states of the last tokens of sequences, of a model with `config.mtp`.

        slots: [B] int64, the slots that their next step reads
        returns [B, hidden] in the dtype of activations
        """
        ...

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row, of a model with `config.mtp`.

        Writes the tokens' entries to `pages`, and reads the rows' entries from place 1 on; no slot
        is read or written. What the entries hold is written again by the forward that computes the
        tokens.
        """
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take."""
        ...
