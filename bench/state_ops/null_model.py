"""A model and a stream that cost next to nothing, for measurements of the host's own work."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from baton.engine.layout.layout import AttentionShape, RecurrentShape
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.settings.config import ModelConfig
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.step.forward_batch import ForwardBatch, HostLengths
from baton.engine.step.recurrent_index import NO_INDEX, RecurrentIndex
from baton.engine.stream.forward_stream import Pending
from baton.kernels.chunks import SnapshotPlan
from baton.kernels.host_plan import HostPlan
from baton.kernels.torch_kernels import TORCH
from baton.kernels.verify import Accepted

P = TypeVar("P")
T = TypeVar("T")

GRID = 256  # tokens of the model's kernel chunk


class NullModel:
    """A model that returns zero logits at once; its pools have one small layer of each kind."""

    weight_bytes = 0
    kernels = TORCH
    needs_cpu_seq_lens = False

    def __init__(self, vocab_size: int, max_model_len: int) -> None:
        self.config = ModelConfig(
            family="null",
            folder=Path(),
            vocab_size=vocab_size,
            hidden_size=1,
            max_model_len=max_model_len,
            layers=(),
            recurrent=(RecurrentShape(conv=(1, 3), ssm=(1, 1, 1)),),
            attention=(AttentionShape(kv_heads=1, head_dim=1),),
            mamba_chunk_size=GRID,
            eos_token_ids=(),
            dtype=torch.float32,
            conv_dtype=torch.float32,
            ssm_dtype=torch.float32,
            raw={},
        )

    def plan(
        self, host: HostLengths, decode_rows: int, snapshots: SnapshotPlan | None
    ) -> HostPlan[RecurrentIndex]:
        return NO_INDEX

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Tensor:
        """Return zero logits [L, vocab] float32."""
        return torch.zeros(len(batch.logit_tokens), self.config.vocab_size)

    def hidden_before(self, states: StatePool, slots: Tensor) -> Tensor:
        """Return zeros [B, hidden] float32."""
        return torch.zeros(len(slots), self.config.hidden_size)

    def draft(self, batch: DraftBatch, states: StatePool, pages: PagePool) -> DraftResult:
        """Return zero logits [B, vocab] float32."""
        return DraftResult(torch.zeros(len(batch.token_ids), self.config.vocab_size), batch.hidden)

    def commit(self, batch: ForwardBatch, states: StatePool, accepted: Accepted) -> None:
        """Do nothing."""


class TimedStream:
    """A stream that runs work in the caller and sums its CPU and wall seconds."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        cpu, wall = time.thread_time(), time.perf_counter()
        done: Future[T] = Future()
        done.set_result(work())
        self.cpu += time.thread_time() - cpu
        self.wall += time.perf_counter() - wall
        return done

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        return self.submit(lambda: work(prepare()))

    def mark(self, then: Callable[[], None]) -> None:
        then()

    def close(self) -> None:
        """Do nothing: no work is ever pending."""
