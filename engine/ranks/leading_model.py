"""The model of a replica with several ranks, as its engine sees it: rank 0's part, which tells the
other ranks what to run."""

from torch import Tensor

from baton.core.errors import InvariantError, RankError
from baton.engine.config import ModelConfig
from baton.engine.forward.forward_batch import ForwardBatch, HostLengths
from baton.engine.forward.recurrent_index import RecurrentIndex
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.base import Model
from baton.engine.ranks.comm import Comm, meet
from baton.engine.ranks.followers import Followers
from baton.engine.ranks.rank_messages import RankPools
from baton.engine.ranks.shared_pools import SharedPools
from baton.engine.ranks.step_message import StepWriter
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted


class LeadingModel:
    """A `Model`. Every rank has pools of the same numbers of slots and pages, so that ids mean the
    same on all.

    A forward is over when all ranks have run it: the logits need every rank's last layer, and where
    none is wanted the ranks meet. Any error in one ends the replica, with RankError.
    """

    def __init__(self, whole: ModelConfig, part: Model, comm: Comm, followers: Followers) -> None:
        """whole: the undivided model. part: that of rank 0. comm: its collectives."""
        self.followers = followers
        self._whole = whole
        self.weight_bytes = max(part.weight_bytes, followers.weight_bytes())
        self._part = part
        self._comm = comm
        self._writer = StepWriter()

    @property
    def config(self) -> ModelConfig:
        return self._part.config

    @property
    def kernels(self) -> Kernels:
        return self._part.kernels

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return self._part.needs_cpu_seq_lens

    def begin(self, states: StatePool, pages: PagePool, block_tables: Tensor) -> None:
        """Give the other ranks pools like these, before the first step. Raises RankError."""
        rows, width = block_tables.shape
        pools = RankPools(states.ids.size, pages.ids.size, pages.layout.page_size, rows, width)
        own = RankStorage(states.storage, pages.storage)
        self.followers.begin(pools, SharedPools(self._whole, pools, own, self.followers.ranks))

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.models.base.Model`."""
        return self._part.plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step on all ranks; see `baton.engine.models.base.Model`. Raises RankError."""
        try:
            self.followers.send(self._writer.message(batch))
            logits = self._part.forward(batch, states, pages)
            if not logits.shape[0]:
                meet(self._comm)
            self._comm.check()
            return logits
        except RankError:
            raise
        except Exception as error:  # a model, a kernel or gloo may raise anything
            raise self.followers.failure(error) from error

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Refuse: the options of an engine with several ranks do not let steps verify drafts."""
        raise InvariantError("several ranks cannot verify draft tokens yet")
