"""The model of a replica with several ranks, as its engine sees it: rank 0's part, which tells the
other ranks what to run."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from baton.core.errors import RankError
from baton.engine.assembly.followers import Followers
from baton.engine.collectives.comm import RankComm, meet
from baton.engine.collectives.commit_message import CommitMessage, PathMessage, packed
from baton.engine.collectives.device_pools import DevicePools
from baton.engine.collectives.draft_message import DraftWriter
from baton.engine.collectives.rank_books import RankBooks
from baton.engine.collectives.rank_messages import CaptureSteps, RankPools
from baton.engine.collectives.shared_pools import SharedPools
from baton.engine.collectives.step_message import StepWriter
from baton.engine.collectives.told_tables import ToldTables
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.rank_storage import RankStorage
from baton.engine.memory.state_pool import StatePool
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.settings.config import ModelConfig
from baton.engine.sizing.step_memory import StepMemory
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths, Window
from baton.engine.step.model import Model
from baton.engine.step.recurrent_index import RecurrentIndex
from baton.engine.step.tree_path import keep_path
from baton.engine.stream.forward_stream import Pending
from baton.kernels.base import Kernels
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.verify import Accepted

_ASK_S = 0.2  # between two looks whether all ranks live, while their devices run a step

T = TypeVar("T")


def unread(device: torch.device) -> bool:
    """Return True if the host does not know what lies on the device: to read it would wait."""
    return device.type != "cpu"


class LeadingModel:
    """A `Model`. Every rank has pools of the same numbers of slots and pages, so that ids mean the
    same on all.

    A forward is over when all ranks have run it: the logits need every rank's last layer, and where
    none is wanted the ranks meet. So they do after a commit. Any error in one ends the replica,
    with RankError.
    """

    def __init__(
        self, whole: ModelConfig, part: Model, comm: RankComm, followers: Followers
    ) -> None:
        """whole: the undivided model. part: that of rank 0. comm: its collectives."""
        self.followers = followers
        self._whole = whole
        self.weight_bytes = max(part.weight_bytes, followers.weight_bytes())
        self._part = part
        self._comm = comm
        self._device = followers.device
        self._on_device = unread(self._device)
        told = ToldTables()
        self._writer = StepWriter(told, on_device=self._on_device)
        self._draft_writer = DraftWriter(told, on_device=self._on_device)
        self._draft_slots: Tensor | None = None  # of the hidden states, before the first depth
        self._books = RankBooks()

    @property
    def config(self) -> ModelConfig:
        return self._part.config

    @property
    def kernels(self) -> Kernels:
        return self._part.kernels

    @property
    def needs_cpu_seq_lens(self) -> bool:
        return self._part.needs_cpu_seq_lens

    def begin(
        self, states: StatePool, pages: PagePool, block_tables: Tensor, step: StepMemory
    ) -> None:
        """Give the other ranks pools like these, before the first step. step: the largest. Raises
        RankError."""
        rows, width = block_tables.shape
        sizes = states.ids.size, pages.ids.size, pages.layout.page_size
        pools = RankPools(*sizes, rows, width, step.kept_tokens, step.total, step.trees)
        own = RankStorage(states.storage, pages.storage)
        kind = SharedPools if self._device.type == "cpu" else DevicePools
        make = partial(kind, self._whole, pools, own, self.followers.ranks)
        self.followers.begin(pools, make)

    def capture(
        self, states: StatePool, pages: PagePool, tables: Tensor, windows: Sequence[Window]
    ) -> None:
        """Capture the decode steps on all ranks, in one order: they hold collectives. Raises
        RankError."""
        if isinstance(self._part, GraphedModel):
            with self._ending_all():
                self.followers.send(CaptureSteps(max((w.tokens for w in windows), default=1)))
                self._part.capture(states, pages, tables, windows)

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        """Plan one step; see `baton.engine.step.model.Model`."""
        return self._part.plan(host, decode_rows, snapshots)

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Run one step on all ranks; see `baton.engine.step.model.Model`. Raises RankError."""
        with self._ending_all():
            self.followers.send(self._writer.message(batch, self.followers.meetings))
            self._writer.broadcast(batch, self._comm)
            self._books.ran(batch)
            logits = self._part.forward(batch, states, pages)
            if not logits.shape[0]:
                meet(self._comm, self._device)
            self._comm.check()
            return logits

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Write the states after accepted tokens, on all ranks, before this returns; see
        `baton.engine.step.model.Model`. Raises RankError."""
        with self._ending_all():
            met, on_device = self.followers.meetings, self._on_device
            self.followers.send(CommitMessage.of(accepted, met, on_device=on_device))
            if on_device:
                self._comm.broadcast(packed(accepted))
            self._books.committed(accepted)
            self._part.commit(batch, states, accepted)
            meet(self._comm, self._device)
            self._comm.check()

    def keep_path(self, batch: ForwardBatch, pages: PagePool, path: Tensor) -> None:
        """Move what the paths of trees have written, on all ranks; see `keep_path`. A commit
        follows, and ends when all have. Raises RankError."""
        with self._ending_all():
            self.followers.send(PathMessage.of(path))
            self._books.moved(path)
            keep_path(batch, pages, path)

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return the last hidden states of sequences; see `baton.engine.step.model.Model`. The
        other ranks have the same, and find them by the message of the first depth."""
        self._draft_slots = slots
        return self._part.hidden_before(states, slots)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Run the MTP layer on one token a row, on all ranks; see
        `baton.engine.step.model.Model`. Raises RankError."""
        with self._ending_all():
            slots, self._draft_slots = self._draft_slots, None
            self.followers.send(self._draft_writer.message(batch, slots, self.followers.meetings))
            self._draft_writer.broadcast(batch, slots, self._comm)
            self._books.drafted(batch)
            result = self._part.draft(batch, states, pages)
            self._comm.check()
            return result

    def result(self, step: Pending[T], limit_s: float) -> T:
        """Wait for a step; see `Pending`. On GPUs nothing but this notices, at the latest after the
        ranks' timeout, that a rank does not come to a collective: RankError.
        """
        if not self._on_device:
            return step.result(limit_s)
        limit_s = self.followers.timeout_s
        ends = time.monotonic() + limit_s
        while True:
            try:
                return step.result(_ASK_S)
            except TimeoutError:
                lost = self.followers.lost
                if lost is None and time.monotonic() < ends:
                    continue
            late = TimeoutError(f"the ranks' devices have not finished a step in {limit_s:g} s")
            reason = lost or self.followers.failure(late)
            self._comm.end()
            raise reason

    def findings(self) -> list[str]:
        """Describe each difference between the books of the ranks, between two steps. Raises
        RankError."""
        with self._ending_all():
            own = self._books.books()
            found = enumerate(self.followers.books(), 1)
            return [f"rank {rank} {what}" for rank, b in found for what in b.differences(own)]

    @contextmanager
    def _ending_all(self) -> Iterator[None]:
        """End the replica after any error inside, with RankError."""
        try:
            yield
        except RankError:
            raise
        except Exception as error:  # a model, a kernel or gloo may raise anything
            raise self.followers.failure(error) from error
