"""FP8 and INT8 checkpoints that tests make, beside the same weights expanded by a reference of
its own.

The reference goes block by block in loops, as the formats are described, and shares no code with
the loader.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.kernels.dispatch import select
from baton.kernels.kernel_choice import KernelChoice
from baton.kernels.linear import packs

FP8 = torch.float8_e4m3fn
FILE = "model.safetensors"
_LARGEST = {FP8: 448.0, torch.int8: 127.0}


@dataclass(frozen=True)
class Packed:
    """A weight in 8 bits, its scales as a file has them, and what it stands for in float32."""

    values: Tensor
    scales: Tensor
    expanded: Tensor


Form = Callable[[Tensor], Packed]


def in_blocks(
    rows: int | None,
    columns: int | None,
    exponents: bool = False,
    stored: torch.dtype = FP8,
) -> Form:
    """A scale for each block of `rows` x `columns` (None: all of them), the last ones partial; for
    each expert of stacked ones. exponents: scales are powers of two. stored: FP8 or int8"""

    def pack(weight: Tensor) -> Packed:
        if weight.dim() == 3:
            each = [pack(expert) for expert in weight]
            return Packed(
                torch.stack([p.values for p in each]),
                torch.stack([p.scales for p in each]),
                torch.stack([p.expanded for p in each]),
            )
        high, wide = rows or weight.shape[0], columns or weight.shape[1]
        counts = (-(-weight.shape[0] // high), -(-weight.shape[1] // wide))
        scales = torch.zeros(counts)
        values = torch.zeros(weight.shape).to(stored)
        expanded = torch.zeros(weight.shape)
        for i, j in product(*(range(count) for count in counts)):
            place = (slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
            scale = weight[place].abs().max() / _LARGEST[stored]
            scales[i, j] = 2.0 ** scale.log2().ceil() if exponents else scale
            exact = weight[place] / scales[i, j]
            values[place] = (exact.round() if stored is torch.int8 else exact).to(stored)
            expanded[place] = values[place].float() * scales[i, j]
        return Packed(values, scales, expanded)

    return pack


def stored(form: Form, store: Callable[[Tensor], Tensor]) -> Form:
    """`form`, with its scales stored in another shape."""

    def pack(weight: Tensor) -> Packed:
        packed = form(weight)
        return replace(packed, scales=store(packed.scales))

    return pack


BLOCKS = in_blocks(128, 128)
EXPONENTS = stored(in_blocks(128, 128, exponents=True), lambda s: s.to(torch.float8_e8m0fnu))
ROWS = in_blocks(1, None)
WHOLE = stored(in_blocks(None, None), lambda s: s.reshape(()))


def rounded_rows(weight: Tensor) -> Packed:
    """A scale for each row, in bfloat16, as compressed-tensors writes them."""
    packed = ROWS(weight)
    scales = packed.scales.bfloat16()
    return Packed(packed.values, scales, packed.values.float() * scales.float())


@dataclass(frozen=True)
class Pair:
    """An FP8 checkpoint, and the same one expanded by the reference."""

    packed: Path
    expanded: Path
    quantised: frozenset[str]


def pack(
    folder: Path,
    forms: Mapping[str, Form],
    scale: str,
    config: Mapping[str, Any],
    more: Mapping[str, Tensor] | None = None,
) -> Pair:
    """Write both beside the plain checkpoint in `folder`.

    forms: by patterns of tensors' names; what matches none stays as it is. scale: the end of a
    scale's name, after the weight's. config: fields of config.json. more: further tensors.
    """
    plain = load_file(folder / FILE)
    packed, expanded = dict(plain), dict(plain)
    quantised = set()
    for name, tensor in plain.items():
        form = next((form for glob, form in forms.items() if fnmatchcase(name, glob)), None)
        if form is not None:
            made = form(tensor)
            packed[name], packed[name + scale] = made.values, made.scales
            expanded[name] = made.expanded
            quantised.add(name)
    assert quantised, f"{', '.join(forms)} match none of {', '.join(plain)}"
    packed |= more or {}
    pair = Pair(
        folder.with_name(f"{folder.name}-fp8"),
        folder.with_name(f"{folder.name}-expanded"),
        frozenset(quantised),
    )
    for to, tensors in ((pair.packed, packed), (pair.expanded, expanded)):
        shutil.copytree(folder, to)
        save_file({n: t.contiguous() for n, t in tensors.items()}, to / FILE)
    edit_config(pair.packed, config)
    return pair


def edit_config(folder: Path, fields: Mapping[str, Any]) -> None:
    """Add fields to the folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_tensors(folder: Path, change: Mapping[str, Tensor | None]) -> None:
    """Replace, add or (None) remove tensors."""
    tensors = {**load_file(folder / FILE), **change}
    save_file({n: t.contiguous() for n, t in tensors.items() if t is not None}, folder / FILE)


def keeps_eight_bit(dtype: torch.dtype) -> bool:
    """Return whether products of this CPU read FP8 matrices in 8 bits."""
    kernels = select(torch.device("cpu"), dtype, KernelChoice.AUTO)
    return packs(kernels.native, dtype)
