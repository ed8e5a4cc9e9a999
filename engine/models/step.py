"""One step as the layers see it: its decode rows, its prefill rows, and where state lies.

Made once a batch, so that what every layer would plan alike is planned once.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from baton.core.errors import InvariantError
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.step.draft_batch import DraftBatch
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.step.layer_progress import LayerProgress
from baton.kernels.chunks import RaggedRows
from baton.kernels.conv1d import GatedConvPrefill
from baton.kernels.delta_mixer import DeltaPrefill
from baton.kernels.mamba2 import Mamba2Prefill


@dataclass(frozen=True)
class DecodeRows:
    """The rows of one token each, which come first. D rows, D tokens."""

    read_slots: Tensor  # [D] int64; of requests where several tokens a request are verified
    write_slots: Tensor  # [D] int64, likewise
    has_initial: Tensor | None  # [D] bool, likewise; None where every row has one
    block_tables: Tensor  # [any, max pages] int32, see ForwardBatch
    table_rows: Tensor  # [D] int64, into block_tables
    kv_lens: Tensor  # [D] int64
    kv_lens_host: tuple[int, ...]
    kept: tuple[Tensor, ...] | None  # where verified tokens' inputs go, a recurrent layer each
    nodes: Tensor | None = None  # [D] int64, the links of trees; None where there are none


@dataclass(frozen=True)
class PrefillRows:
    """The other rows, as a ragged batch of their own: token 0 is the first prefill token."""

    rows: RaggedRows
    block_tables: Tensor  # [any, max pages] int32, see ForwardBatch
    table_rows: Tensor  # [P] int64, into block_tables
    kv_lens: Tensor  # [P] int64
    kv_lens_host: tuple[int, ...]
    planned_conv: GatedConvPrefill | None  # where recurrent layers are convolutions alone
    planned_mamba2: Mamba2Prefill | None  # where they are Mamba-2
    planned_delta: DeltaPrefill | None  # where they are gated delta nets
    planned_shift: GatedConvPrefill | None  # where the model's MTP layer is run

    @property
    def conv(self) -> GatedConvPrefill:
        """The function that a layer of a convolution alone runs on these rows."""
        if self.planned_conv is None:
            raise InvariantError("no recurrent layer of the model's configuration is a convolution")
        return self.planned_conv

    @property
    def mamba2(self) -> Mamba2Prefill:
        """The function that a Mamba-2 layer runs on these rows."""
        if self.planned_mamba2 is None:
            raise InvariantError("no recurrent layer of the model's configuration is Mamba-2")
        return self.planned_mamba2

    @property
    def delta(self) -> DeltaPrefill:
        """The function that a gated delta net runs on these rows."""
        if self.planned_delta is None:
            raise InvariantError("no recurrent layer of the model's configuration is a delta net")
        return self.planned_delta

    @property
    def shift(self) -> GatedConvPrefill:
        """The function that shifts the hidden states of these rows by one token."""
        if self.planned_shift is None:
            raise InvariantError("the model's configuration runs no MTP layer")
        return self.planned_shift


@dataclass(frozen=True)
class Step:
    """The rows of one step as layers see them. Made by the decoder, from the runner's batch."""

    decode_tokens: int  # = decode rows
    decode: DecodeRows | None
    prefill: PrefillRows | None
    positions: Tensor  # [T] int64
    token_pages: Tensor  # [T] int64
    token_offsets: Tensor  # [T] int64
    states: StatePool
    pages: PagePool
    progress: LayerProgress | None

    @classmethod
    def plan(cls, batch: ForwardBatch, states: StatePool, pages: PagePool) -> Self:
        return cls(
            decode_tokens=batch.decode_rows,
            decode=_decode_rows(batch) if batch.decode_rows else None,
            prefill=_prefill_rows(batch) if batch.decode_rows < batch.rows else None,
            positions=batch.positions,
            token_pages=batch.token_pages,
            token_offsets=batch.token_offsets,
            states=states,
            pages=pages,
            progress=batch.progress,
        )

    @classmethod
    def draft(cls, batch: DraftBatch, states: StatePool, pages: PagePool) -> Self:
        """Return the step of one depth of drafts, whose layers read and write no slot."""
        return cls(
            decode_tokens=batch.token_ids.shape[0],
            decode=DecodeRows(
                read_slots=batch.table_rows[:0],
                write_slots=batch.table_rows[:0],
                has_initial=None,
                block_tables=batch.block_tables,
                table_rows=batch.table_rows,
                kv_lens=batch.kv_lens,
                kv_lens_host=batch.kv_lens_host,
                kept=None,
                nodes=batch.nodes,
            ),
            prefill=None,
            positions=batch.positions,
            token_pages=batch.token_pages,
            token_offsets=batch.token_offsets,
            states=states,
            pages=pages,
            progress=None,
        )

    def state_written(self, index: int) -> None:
        """Note that a recurrent layer's rows have their states in the pool."""
        if self.progress is not None:
            self.progress.state_written(index)

    def kv_written(self, index: int) -> None:
        """Note that an attention layer's rows have their KV in the pool."""
        if self.progress is not None:
            self.progress.kv_written(index)

    def ssm(self, index: int) -> Tensor:
        """Return [slots, *ssm shape], the SSM states of recurrent layer `index`."""
        return ssm_pool(self.states, index)


def ssm_pool(states: StatePool, index: int) -> Tensor:
    """Return [slots, *ssm shape], the SSM states of recurrent layer `index`."""
    pool = states.ssm[index]
    if pool is None:
        raise InvariantError(f"recurrent layer {index} has no SSM state in the pool's layout")
    return pool


def _decode_rows(batch: ForwardBatch) -> DecodeRows:
    rows, requests = slice(batch.decode_rows), slice(batch.decode_requests)
    return DecodeRows(
        read_slots=batch.read_slots[requests],
        write_slots=batch.write_slots[requests],
        has_initial=None if all(batch.host.has_initial[rows]) else batch.has_initial[requests],
        block_tables=batch.block_tables,
        table_rows=batch.table_rows[rows],
        kv_lens=batch.kv_lens[rows],
        kv_lens_host=batch.host.kv_lens[rows],
        kept=None if batch.window is None else batch.kept,
        nodes=batch.nodes,
    )


def _prefill_rows(batch: ForwardBatch) -> PrefillRows:
    first, request = batch.decode_rows, batch.decode_requests
    cu_seqlens_host, prefix_lens_host = batch.host.prefill(first)
    rows = RaggedRows(
        cu_seqlens=batch.cu_seqlens[first:] - first,
        cu_seqlens_host=cu_seqlens_host,
        prefix_lens_host=prefix_lens_host,
        read_slots=batch.read_slots[request:],
        write_slots=batch.write_slots[request:],
        has_initial=batch.has_initial[request:],
    )
    index = batch.index
    return PrefillRows(
        rows=rows,
        block_tables=batch.block_tables,
        table_rows=batch.table_rows[first:],
        kv_lens=batch.kv_lens[first:],
        kv_lens_host=batch.host.kv_lens[first:],
        planned_conv=None if index.conv is None else index.conv(rows),
        planned_mamba2=None if index.mamba2 is None else index.mamba2(rows),
        planned_delta=None if index.delta is None else index.delta(rows),
        planned_shift=None if index.shift is None else index.shift(rows),
    )
