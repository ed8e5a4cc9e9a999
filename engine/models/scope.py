"""The tensors that a layer is built from, under one name prefix, and its rank's part of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from baton.engine.collectives.comm import Comm, Shard
from baton.engine.layout.shards import SubBlock, spans
from baton.engine.loading.eight_bit_part import EightBitPart, eight_bit_of
from baton.engine.loading.rounding import Rounding
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Shape, WeightSource
from baton.engine.models.eight_bit_form import empty_experts, matrix_of
from baton.engine.models.recurrent_layer import RecurrentLayer
from baton.engine.models.tally import Tally
from baton.kernels import huge_pages
from baton.kernels.base import Kernels
from baton.kernels.eight_bit_weight import EightBitExperts, EightBitWeight, Fp8Words
from baton.kernels.linear import (
    ExpertWeight,
    JoinedWeight,
    Matrix,
    PackedWeight,
    Part,
    Plain,
    Table,
    packs,
)
from baton.kernels.torch_kernels import TORCH

# A block of an axis that ranks divide; a number is that of places, which they divide evenly.
Block = SubBlock | int


@dataclass(frozen=True)
class Scope:
    """Tensor names are relative to `prefix`; tensors come in `dtype` on `device`.

    A tensor that needs no change stays mapped from the file, but for native kernels, which read
    copies faster; any other is copied once.
    """

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    shard: Shard
    comm: Comm
    kernels: Kernels = TORCH
    eight_bit: bool = False  # matrices that the source has in 8 bits stay so
    rounding: Rounding | None = None  # of others, which then have 8 bits too
    prefix: str = ""
    tally: Tally = field(default_factory=Tally)
    # The layers with a recurrent state, in the order in which they were built.
    recurrent: list[RecurrentLayer] = field(default_factory=list)

    def at(self, name: str) -> "Scope":
        """Return the scope of the part called `name`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def holds(self, name: str) -> bool:
        """Return true if the source has a tensor of that name."""
        return self.source.holds(self.prefix + name)

    def differs(self, name: str, other: str) -> bool:
        """Return true if the source has a tensor `name` of other values than tensor `other`."""
        return self.source.differs(self.prefix + name, self.prefix + other)

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return the whole of a tensor of `shape`, on every rank."""
        return self.part(name, shape, (), dtype=dtype)

    def part(
        self,
        name: str,
        shape: Shape,
        blocks: Sequence[Block],
        dim: int = 0,
        dtype: torch.dtype | None = None,
        then: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Return this rank's part of a tensor of `shape`.

        blocks: the blocks along `dim`; each is divided among the ranks on its own (the q, k and v
        of one fused tensor, say). Empty: not divided.
        then: what the layer makes of it. Not called on a tensor without data: torch's first
        arithmetic on one imports for two seconds.
        """
        read = self._read(name, shape, blocks, dim)
        own = self._kept(read, dtype or self.dtype)
        if own is not read:
            self.source.release(self.prefix + name)
        self.tally.nbytes += own.nbytes
        return own if then is None or own.is_meta else then(own)

    def product(
        self,
        name: str,
        shape: Shape,
        blocks: Sequence[Block],
        dim: int = 0,
        dtype: torch.dtype | None = None,
        vocabulary: bool = False,
    ) -> Matrix:
        """Return this rank's part of a matrix of products.

        dtype: of a matrix that is never kept in 8 bits. None: any other's
        vocabulary: it is the head
        """
        stored = None
        if dtype is None:
            stored = self._eight_bit(name, shape, blocks, dim, vocabulary)
        if stored is None:
            return self._plain(name, shape, blocks, dim, dtype or self.dtype)
        return self._kept_matrix(name, stored)

    def table(self, name: str, shape: Shape, blocks: Sequence[Block], multiplied: bool) -> Table:
        """Return this rank's part of an embedding, whose rows are looked up.

        multiplied: it is a matrix of products too
        """
        stored = self._eight_bit(name, shape, blocks, vocabulary=True)
        if stored is not None:
            return self._kept_matrix(name, stored)
        if multiplied:
            return self._plain(name, shape, blocks, 0, self.dtype)
        return self.part(name, shape, blocks)

    def _plain(
        self, name: str, shape: Shape, blocks: Sequence[Block], dim: int, dtype: torch.dtype
    ) -> Plain:
        """Return this rank's part of a matrix in a dtype of its own, 8 bits expanded."""
        if not packs(self.kernels.native, dtype):
            return self.part(name, shape, blocks, dim, dtype)
        own = PackedWeight.of(self._read(name, shape, blocks, dim), dtype)
        self.source.release(self.prefix + name)
        self.tally.nbytes += own.nbytes
        return own

    def product_rows(
        self,
        parts: Mapping[str, Sequence[Block]],
        columns: int,
        then: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> Matrix:
        """Return this rank's rows of several matrices, used as one in products. parts, then: see
        `rows`.
        """
        if len(parts) == 1 and not then:
            ((name, blocks),) = parts.items()
            return self.product(f"{name}.weight", (places(blocks), columns), blocks)
        if self.eight_bit:
            return self._joined(parts, columns, then or {})
        return self._plain_rows(parts, columns, then)

    def _plain_rows(
        self,
        parts: Mapping[str, Sequence[Block]],
        columns: int,
        then: Mapping[str, Callable[[Tensor], Tensor]] | None,
    ) -> Plain:
        fused = self.rows(parts, "weight", (columns,), then=then)
        if not self._packs:
            return fused
        own = PackedWeight.of(fused)
        self.tally.nbytes += own.nbytes - fused.nbytes
        return own

    def rows(
        self,
        parts: Mapping[str, Sequence[Block]],
        suffix: str,
        columns: Shape,
        dtype: torch.dtype | None = None,
        then: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    ) -> Tensor:
        """Return this rank's rows of several tensors, one after another: [rows, *columns].

        parts: tensor name (without `suffix`) to the row blocks in it, in the order wanted.
        then: what the layer makes of the rows of some; as many, in another order.
        """
        then = then or {}
        if len(parts) == 1:
            ((name, blocks),) = parts.items()
            shape = (places(blocks), *columns)
            return self.part(f"{name}.{suffix}", shape, blocks, dtype=dtype, then=then.get(name))
        total = sum(
            block.places_of(self.shard.rank, self.shard.size)
            for name in parts
            for block in _blocks(parts[name], self.prefix + name)
        )
        fused = huge_pages.empty((total, *columns), dtype or self.dtype, self.device)
        first = 0
        for name, blocks in parts.items():
            own = self._read(f"{name}.{suffix}", (places(blocks), *columns), blocks, 0)
            if name in then and not own.is_meta:
                own = then[name](own)
            fused[first : first + own.shape[0]] = own
            first += own.shape[0]
            self.source.release(f"{self.prefix}{name}.{suffix}")
        self.tally.nbytes += fused.nbytes
        return fused

    def stack(
        self, names: Sequence[Sequence[str]], shape: Shape, blocks: Sequence[Block], dim: int = 0
    ) -> Tensor:
        """Return this rank's parts of tensors of one `shape`, stacked: [len(names), rows, ...].

        names: for each place of the stack, the tensors whose rows lie there end to end.
        blocks, dim: as in `part`, within each tensor.
        """
        stacked = torch.empty(0)
        for place, group in enumerate(names):
            for turn, name in enumerate(group):
                own = self._read(name, shape, blocks, dim)
                rows = own.shape[0]
                if not place and not turn:
                    whole = (len(names), len(group) * rows, *own.shape[1:])
                    stacked = huge_pages.empty(whole, self.dtype, self.device)
                stacked[place, turn * rows : (turn + 1) * rows] = own
                self.source.release(self.prefix + name)
        self.tally.nbytes += stacked.nbytes
        return stacked

    def experts(
        self, names: Sequence[Sequence[str]], shape: Shape, blocks: Sequence[Block], dim: int = 0
    ) -> ExpertWeight:
        """Return `stack` in the form that products read: in 8 bits where each of the tensors is."""
        kept = self._eight_bit_stack(names, shape, blocks, dim)
        return self.stack(names, shape, blocks, dim) if kept is None else kept

    def stacked_experts(
        self, name: str, shape: Shape, blocks: Sequence[Block], dim: int
    ) -> ExpertWeight:
        """Return this rank's part of a tensor with a matrix an expert, in the form that products
        read. shape, blocks, dim: as in `part`
        """
        stored = self._eight_bit(name, shape, blocks, dim)
        if stored is None:
            return self.part(name, shape, blocks, dim)
        kept = empty_experts(stored.values.shape, stored, self.kernels, self.dtype, self.device)
        kept.put(slice(None), stored.values, stored.scales)
        self.tally.add_eight_bit(kept.nbytes)
        self.source.release(self.prefix + name)
        return kept

    def own(self, tensor: Tensor) -> Tensor:
        """Move a tensor that the model made for itself to the device, and count its bytes."""
        self.tally.nbytes += tensor.nbytes
        return tensor.to(self.device)

    @property
    def bias_dtype(self) -> torch.dtype:
        """The dtype in which products add biases: a bias of another dtype would be cast in every
        step.
        """
        return self.dtype if self.kernels.native is None else torch.float32

    def _kept(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor as the model keeps it. Native kernels read huge pages, which cannot map
        files.
        """
        if tensor.is_meta or self.kernels.native is None:
            return tensor.to(self.device, dtype).contiguous()
        return huge_pages.empty(tensor.shape, dtype, self.device).copy_(tensor)

    @property
    def _packs(self) -> bool:
        """True if products are fastest with packed weights, or read nothing else beside 8 bits."""
        native = self.kernels.native
        return packs(native, self.dtype) or (self.eight_bit and native is not None)

    def _read(self, name: str, shape: Shape, blocks: Sequence[Block], dim: int) -> Tensor:
        """Return this rank's part of every block along `dim`, end to end, as the source has it."""
        part = self._own(name, blocks, dim)
        return self.source.tensor(self.prefix + name, shape, part)

    def _own(self, name: str, blocks: Sequence[Block], dim: int) -> WeightPart:
        """Return this rank's part of every block along `dim`, end to end."""
        if self.shard.size == 1 or not blocks:
            return WHOLE
        runs = spans(_blocks(blocks, self.prefix + name), self.shard.rank, self.shard.size)
        return WeightPart(dim, runs)

    def _eight_bit(
        self,
        name: str,
        shape: Shape,
        blocks: Sequence[Block],
        dim: int = 0,
        vocabulary: bool = False,
    ) -> EightBitPart | None:
        """Return this rank's part of a matrix that is kept in 8 bits; None for any other.

        vocabulary: it is an embedding, or the head
        """
        if not self.eight_bit:
            return None
        whole, own = self.prefix + name, self._own(name, blocks, dim)
        stored = eight_bit_of(self.source, whole, shape, own)
        rounding = self.rounding
        if rounding is None or (stored is not None and stored.values.dtype is rounding.dtype):
            return stored
        if vocabulary and not rounding.vocabulary:
            return None
        return rounding.part(self.source, whole, shape, own)

    def _kept_matrix(self, name: str, stored: EightBitPart) -> Tensor | EightBitWeight | Fp8Words:
        """Return a matrix that `_eight_bit` gave as products read it."""
        own = self._eight_bit_matrix(stored)
        self.source.release(self.prefix + name)
        return own

    def _eight_bit_matrix(self, stored: EightBitPart) -> Tensor | EightBitWeight | Fp8Words:
        return matrix_of(stored, self.kernels, self.dtype, self.device, self.tally)

    def _eight_bit_stack(
        self, names: Sequence[Sequence[str]], shape: Shape, blocks: Sequence[Block], dim: int
    ) -> ExpertWeight | None:
        """Return matrices as in `stack`; None where not all of them stay in 8 bits, in one dtype,
        with scales for as many columns.
        """
        kept: Fp8Words | EightBitExperts | None = None
        for place, group in enumerate(names):
            stored = [self._eight_bit(name, shape, blocks, dim) for name in group]
            parts = [part for part in stored if part is not None]
            if len(parts) < len(group) or len({part.values.dtype for part in parts}) > 1:
                return None
            own = EightBitPart.concat(parts)
            form = (own.group, own.values.dtype)
            if kept is not None and form != (kept.group, kept.stored):
                return None
            kept = kept or empty_experts(
                (len(names), *own.values.shape), own, self.kernels, self.dtype, self.device
            )
            kept.put(place, own.values, own.scales)
            for name in group:
                self.source.release(self.prefix + name)
        if kept is not None:
            self.tally.add_eight_bit(kept.nbytes)
        return kept

    def _joined(
        self,
        parts: Mapping[str, Sequence[Block]],
        columns: int,
        then: Mapping[str, Callable[[Tensor], Tensor]],
    ) -> Matrix:
        """Return the rows of several matrices: neighbours in one 8-bit dtype are one matrix, and so
        are neighbours in the model's dtype.
        """
        stored = {
            name: self._eight_bit(f"{name}.weight", (places(blocks), columns), blocks)
            for name, blocks in parts.items()
        }
        dtypes = {
            name: None if part is None else part.values.dtype for name, part in stored.items()
        }
        joined: list[Part] = []
        for dtype, names in groupby(parts, lambda name: dtypes[name]):
            group = list(names)
            if dtype is None:
                own = {name: parts[name] for name in group}
                joined.append(self._plain_rows(own, columns, then))
                continue
            found = [
                part if name not in then else part.reordered(then[name])
                for name in group
                if (part := stored[name]) is not None
            ]
            joined.append(self._eight_bit_matrix(EightBitPart.concat(found)))
            for name in group:
                self.source.release(f"{self.prefix}{name}.weight")
        return joined[0] if len(joined) == 1 else JoinedWeight(tuple(joined))


def places(blocks: Sequence[Block]) -> int:
    """Return the number of places that blocks take, on all ranks together."""
    return sum(block if isinstance(block, int) else block.places for block in blocks)


def _blocks(blocks: Sequence[Block], what: str) -> list[SubBlock]:
    return [SubBlock(what, block) if isinstance(block, int) else block for block in blocks]
