"""The tensors that a layer is built from, under one name prefix, and its rank's part of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from baton.engine.collectives.comm import Comm, Shard
from baton.engine.layout.shards import SubBlock, spans
from baton.engine.loading.eight_bit_part import EightBitPart, eight_bit_of
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.loading.weights import Shape, WeightSource
from baton.engine.models.recurrent_layer import RecurrentLayer
from baton.engine.models.tally import Tally
from baton.kernels import huge_pages
from baton.kernels.base import Kernels
from baton.kernels.eight_bit_weight import EightBitExperts, EightBitWeight, Fp8Words
from baton.kernels.linear import (
    ExpertWeight,
    Int8Weight,
    JoinedWeight,
    Matrix,
    PackedWeight,
    Part,
    Table,
    Weight,
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
    int8: bool = False  # matrices are rounded to 8 bits
    eight_bit: bool = False  # matrices that the source has in 8 bits stay so
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
    ) -> Matrix:
        """Return this rank's part of a matrix of products.

        dtype: of a matrix that is never kept in 8 bits. None: any other's
        """
        stored = self._eight_bit(name, shape, blocks, dim) if dtype is None else None
        if stored is None:
            return self.table(name, shape, blocks, dim, dtype)
        own = self._eight_bit_matrix(stored)
        self.source.release(self.prefix + name)
        return own

    def table(
        self,
        name: str,
        shape: Shape,
        blocks: Sequence[Block],
        dim: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Table:
        """Return this rank's part of a matrix of products whose rows may be looked up too. 8
        bits are expanded.

        dtype: as of `product`
        """
        if self.int8 and dtype is None:
            return self.matrix(self.part(name, shape, blocks, dim))
        dtype = dtype or self.dtype
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
    ) -> Table:
        fused = self.rows(parts, "weight", (columns,), then=then)
        if not self._packs:
            return self.matrix(fused)
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
        return self.matrix(self.stack(names, shape, blocks, dim)) if kept is None else kept

    def stacked_experts(
        self, name: str, shape: Shape, blocks: Sequence[Block], dim: int
    ) -> ExpertWeight:
        """Return this rank's part of a tensor with a matrix an expert, in the form that products
        read. shape, blocks, dim: as in `part`
        """
        stored = self._eight_bit(name, shape, blocks, dim)
        if stored is None:
            return self.matrix(self.part(name, shape, blocks, dim))
        kept = self._empty_experts(stored.values.shape, stored)
        kept.put(slice(None), stored.values, stored.scales)
        self.tally.add_eight_bit(kept.nbytes)
        self.source.release(self.prefix + name)
        return kept

    def matrix(self, tensor: Tensor) -> Weight:
        """Convert a tensor of this scope to the form that products read."""
        if not self.int8:
            return tensor
        if tensor.is_meta:
            self.tally.nbytes += Int8Weight.nbytes_of(tensor.shape) - tensor.nbytes
            return tensor
        rounded = Int8Weight.of(tensor)
        self.tally.nbytes += rounded.nbytes - tensor.nbytes
        return rounded

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
        """True if products are fastest with packed weights."""
        return not self.int8 and packs(self.kernels.native, self.dtype)

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
        self, name: str, shape: Shape, blocks: Sequence[Block], dim: int = 0
    ) -> EightBitPart | None:
        """Return this rank's part of a matrix that stays in 8 bits; None for any other."""
        if not self.eight_bit:
            return None
        return eight_bit_of(self.source, self.prefix + name, shape, self._own(name, blocks, dim))

    def _empty_experts(self, shape: Shape, stored: EightBitPart) -> Fp8Words | EightBitExperts:
        """Allocate experts that stay in 8 bits, as `stored` is."""
        if self.kernels.reads_fp8_words:
            return Fp8Words.empty(shape, stored.group, self.dtype, self.device)
        dtype = stored.values.dtype
        return EightBitExperts.empty(shape, stored.group, self.dtype, self.device, dtype)

    def _eight_bit_matrix(self, stored: EightBitPart) -> Tensor | EightBitWeight | Fp8Words:
        """Return a matrix in 8 bits as products read it; without data, perhaps its values alone."""
        if self.kernels.reads_fp8_words:
            words = Fp8Words.empty(stored.values.shape, stored.group, self.dtype, self.device)
            words.put(slice(None), stored.values, stored.scales)
            self.tally.add_eight_bit(words.nbytes)
            return words
        rows, columns = stored.values.shape
        nbytes = EightBitWeight.nbytes_of(rows, columns, stored.scales.shape[1], self.dtype)
        self.tally.add_eight_bit(nbytes)
        if stored.values.is_meta:
            return stored.values
        return EightBitWeight.of(stored.values, stored.scales, stored.group, self.dtype)

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
            kept = kept or self._empty_experts((len(names), *own.values.shape), own)
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
