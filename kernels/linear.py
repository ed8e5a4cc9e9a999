"""Products with a weight matrix, and the rows of one."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.kernels import huge_pages
from baton.kernels.eight_bit_weight import EightBitExperts, EightBitWeight, Fp8Words
from baton.kernels.native.arguments import DTYPES
from baton.kernels.native.recorder import SMALL, Native

# Rows, a multiple of 16, of a weight that are converted before they are packed.
_CONVERTED_ROWS = 256
# Multiply-adds that are not worth waking other threads for: some 100 microseconds.
_SMALL_PRODUCT = 8 << 20
# Rows up to which each thread rounds the activations to bfloat16 for itself.
_ROUNDED_APART = 48


@dataclass(frozen=True)
class PackedWeight:
    """A matrix [O, K] as the native library multiplies it: 16 rows side by side, the columns of
    one step at a time, zeros where there is no row or no column. An embedding that is the head's
    weight too is kept so, and looked up in it.

    values: [ceil(O / 16), ceil(K / d), 16, d] of bfloat16, d = 2, or of float32, d = 1
    shape:  [O, K]
    """

    values: Tensor
    shape: torch.Size

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @staticmethod
    def of(weight: Tensor, dtype: torch.dtype | None = None) -> "PackedWeight":
        """Pack a matrix, some rows at a time, so that each value is read once.

        weight: [O, K] float, perhaps mapped from a file
        dtype:  bfloat16 or float32; None: the weight's
        """
        dtype = dtype or weight.dtype
        rows, columns = weight.shape
        depth = 4 // dtype.itemsize
        panels, steps = -(-rows // 16), -(-columns // depth)
        values = huge_pages.empty((panels, steps, 16, depth), dtype, weight.device)
        # A step as one value: torch turns those over six times as fast as pairs of halves.
        turned = values.view(torch.int32)[..., 0]
        as_it_lies = weight.dtype == dtype and weight.is_contiguous()
        if as_it_lies and not columns % depth and not rows % 16:
            turned.copy_(weight.view(torch.int32).view(panels, 16, steps).transpose(1, 2))
        else:
            # A plain buffer: torch's own, which are aligned, would leave holes in the heap.
            size = _CONVERTED_ROWS * steps * depth
            block = torch.frombuffer(bytearray(size * dtype.itemsize), dtype=dtype)
            block = block.view(_CONVERTED_ROWS, steps * depth)
            for first in range(0, rows, _CONVERTED_ROWS):
                part = weight[first : first + _CONVERTED_ROWS]
                block[: part.shape[0], :columns] = part
                block[part.shape[0] :] = 0
                filled = turned[first // 16 : (first + _CONVERTED_ROWS) // 16]
                words = block.view(torch.int32).view(-1, 16, steps)
                filled.copy_(words[: filled.shape[0]].transpose(1, 2))
        return PackedWeight(values, torch.Size((rows, columns)))

    def dense(self) -> Tensor:
        """Return the matrix as [O, K], in its dtype."""
        rows, columns = self.shape
        return self.values.transpose(1, 2).flatten(2).flatten(0, 1)[:rows, :columns]

    def rows(self, ids: Tensor) -> Tensor:
        """Return some rows of the matrix. ids: [T] int64 -> [T, K], in its dtype."""
        return self.values[ids // 16, :, ids % 16].flatten(1)[:, : self.shape[1]]


@dataclass(frozen=True)
class JoinedWeight:
    """Rows of several matrices one after another, each in its own form."""

    parts: "tuple[Part, ...]"

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]))

    def dense(self) -> Tensor:
        """Return the matrix as [O, K]."""
        return torch.cat([p if isinstance(p, Tensor) else p.dense() for p in self.parts])


Plain = Tensor | PackedWeight
Part = Plain | EightBitWeight | Fp8Words  # of a joined one
Table = Part  # of rows that are looked up
Matrix = Part | JoinedWeight  # of a product
ExpertWeight = Tensor | EightBitExperts | Fp8Words  # one matrix an expert


def packs(native: Native | None, dtype: torch.dtype) -> bool:
    """Return whether products with packed weights are the fastest. In bfloat16 the CPU must
    multiply such values itself. In float32 one core then does 1.3 times what it does by torch's
    product."""
    if native is None:
        return False
    wide = native.library.wide_vectors and dtype == torch.float32
    return wide or (native.library.dots_bf16 and dtype == torch.bfloat16)


def linear(x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """Implement `Kernels.linear` in torch."""
    if not isinstance(weight, Tensor):
        weight = weight.dense().to(x.dtype)
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def router_logits(x: Tensor, weight: Matrix) -> Tensor:
    """Implement `Kernels.router_logits` in torch."""
    if isinstance(weight, Tensor):
        if weight.dtype == x.dtype != torch.float32 and x.device.type != "cpu":
            # Products of bfloat16 numbers are exact in float32, in which matrix units add them.
            return torch.mm(x, weight.t(), out_dtype=torch.float32)
        weight = weight.float()
    return linear(x.float(), weight)


def router_logits_native(native: Native, x: Tensor, weight: Matrix) -> Tensor:
    """Implement `Kernels.router_logits` natively, for float32 x."""
    return linear_native(native, x.float(), weight)


def linear_native(native: Native, x: Tensor, weight: Matrix, bias: Tensor | None = None) -> Tensor:
    """Implement `Kernels.linear` natively, for float32 x. A bfloat16 weight is multiplied in
    bfloat16 where the CPU has such products, else in float32. A row has the same bits among any
    number of rows, which torch's product does not promise."""
    rows, columns = x.shape
    y = native.empty(rows, weight.shape[0])
    if isinstance(weight, PackedWeight | EightBitWeight):
        _multiply_packed(native, x, weight, bias, y)
        return y
    if isinstance(weight, JoinedWeight):
        first = 0
        for part in weight.parts:
            own = slice(first, first + part.shape[0])
            added = None if bias is None else bias[own]
            _multiply_packed(native, x, _packed(part), added, y[:, own])
            first = own.stop
        return y
    if isinstance(weight, Fp8Words):
        raise TypeError("the native library multiplies FP8 in panels; see EightBitWeight")
    dots = native.library.dots_bf16 and weight.dtype == torch.bfloat16
    rounded = _rounded(native, x) if dots else None
    native.call(
        "linear",
        rows * columns * weight.shape[0] < _SMALL_PRODUCT,
        x=x,
        weight=weight,
        bias=bias,
        y=y,
        rounded=rounded,
        rows=rows,
        columns=columns,
        outputs=weight.shape[0],
        x_stride=x.stride(0),
        dtype=DTYPES[weight.dtype],
    )
    return y


def _packed(part: Part) -> PackedWeight | EightBitWeight:
    """Return a matrix that lies in panels. Raises TypeError for others."""
    if isinstance(part, PackedWeight | EightBitWeight):
        return part
    raise TypeError(f"the native library multiplies packed matrices here, not {type(part)}")


def _multiply_packed(
    native: Native,
    x: Tensor,
    weight: PackedWeight | EightBitWeight,
    bias: Tensor | None,
    y: Tensor,
) -> None:
    """Write the product to y [T, O], whose rows may lie apart."""
    rows, columns = x.shape
    small = rows * columns * weight.shape[0] < _SMALL_PRODUCT
    rounded = _rounded(native, x) if weight.dtype == torch.bfloat16 else None
    if isinstance(weight, EightBitWeight):
        native.call(
            "packed_eight_bit",
            small,
            x=x,
            weight=weight.values,
            scale=weight.scales,
            bias=bias,
            y=y,
            rounded=rounded,
            rows=rows,
            columns=columns,
            outputs=weight.shape[0],
            x_stride=x.stride(0),
            y_stride=y.stride(0),
            dtype=DTYPES[weight.dtype],
            group=weight.group,
            integers=int(weight.integers),
        )
        return
    native.call(
        "packed_linear",
        small,
        x=x,
        weight=weight.values,
        bias=bias,
        y=y,
        rounded=rounded,
        rows=rows,
        columns=columns,
        outputs=weight.shape[0],
        x_stride=x.stride(0),
        y_stride=y.stride(0),
        dtype=DTYPES[weight.dtype],
    )


def _rounded(native: Native, x: Tensor) -> Tensor | None:
    """Return memory for x [T, K] in bfloat16, with zeros behind each row, and for rows up to the
    next multiple of 16; None where rows are few."""
    rows, columns = x.shape
    if rows <= _ROUNDED_APART:
        return None
    return native.empty(-(-rows // 16) * 16, -(-columns // 32) * 32, dtype=torch.bfloat16)


def embedding(ids: Tensor, table: Table, own: range | None = None) -> Tensor:
    """Implement `Kernels.embedding` in torch."""
    if own is not None:
        local = (ids - own.start).clamp_(0, len(own) - 1)
        outside = (ids < own.start) | (ids >= own.stop)
        return embedding(local, table).masked_fill(outside[:, None], 0.0)
    return F.embedding(ids, table) if isinstance(table, Tensor) else table.rows(ids)


def embedding_native(native: Native, ids: Tensor, table: Table, own: range | None = None) -> Tensor:
    """Implement `Kernels.embedding` natively, in float32, whatever dtype the table has."""
    rows, width = ids.shape[0], table.shape[1]
    out = native.empty(rows, width)
    if isinstance(table, Fp8Words):
        raise TypeError("the native library looks 8-bit rows up in panels; see EightBitWeight")
    eight_bit = table if isinstance(table, EightBitWeight) else None
    native.call(
        "embedding",
        rows * width < SMALL,
        ids=ids,
        table=table if isinstance(table, Tensor) else table.values,
        scale=None if eight_bit is None else eight_bit.scales,
        out=out,
        rows=rows,
        width=width,
        dtype=DTYPES[table.dtype],
        first=own.start if own is not None else 0,
        count=table.shape[0],
        packed=int(not isinstance(table, Tensor)),
        group=0 if eight_bit is None else eight_bit.group,
        integers=int(eight_bit is not None and eight_bit.integers),
    )
    return out
