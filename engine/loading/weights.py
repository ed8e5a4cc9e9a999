"""The sources of a model's tensors: a checkpoint, a random generator, or a record of names alone.

A model is built by asking a `WeightSource` for tensors by name and shape. Building it once on
`DeclaredWeights` costs nothing and tells which tensors it needs; so a checkpoint is compared with
the whole model before any of it is read, and every fault is named at once.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import WeightsError
from baton.engine.loading.eight_bit_part import EightBitLayout, EightBitPart, EightBitSource
from baton.engine.loading.expansion import expand, scale_values
from baton.engine.loading.scales import (
    EIGHT_BIT,
    check_faults,
    is_unused_companion,
    pair_scales,
    zero_point_of,
)
from baton.engine.loading.weight_file import WeightFile
from baton.engine.loading.weight_part import WHOLE, WeightPart
from baton.engine.settings.quantisation import BLOCK

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_NAMED_AT_MOST = 20
_COMPARED_ROWS = 1024  # of two tensors at once

# Called with (bytes loaded, bytes in all) as tensors are loaded.
Progress = Callable[[int, int], None]
Shape = tuple[int, ...]


class WeightSource(Protocol):
    def holds(self, name: str) -> bool:
        """Return true if there is a tensor of that name. Checkpoints spell some tensors in several
        ways.
        """
        ...

    def differs(self, name: str, other: str) -> bool:
        """Return true if there is a tensor of that name whose values are not those of `other`,
        both as the source has them. Plans ask too, so that they count what is loaded.
        """
        ...

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        """Return `part` of tensor `name`, in whatever dtype the source has. The caller must not
        write to it.

        shape: of the whole tensor
        """
        ...

    def release(self, name: str) -> None:
        """Note that `name` has been copied, so that the source may free it."""
        ...


class DeclaredWeights(EightBitSource):
    """Tensors without data, and a record of those that were asked for."""

    def __init__(self, checkpoint: "Checkpoint | None" = None) -> None:
        """checkpoint: the one that the model will be built from, which may spell tensors in several
        ways, and hold some that others stand for."""
        self.shapes: dict[str, Shape] = {}
        self._checkpoint = checkpoint

    def holds(self, name: str) -> bool:
        return self._checkpoint is not None and self._checkpoint.holds(name)

    def differs(self, name: str, other: str) -> bool:
        return self._checkpoint is not None and self._checkpoint.differs(name, other)

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        self.shapes[name] = shape
        return part.of(torch.empty(shape, device="meta"))

    def eight_bit(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> EightBitPart | None:
        if self._checkpoint is None:
            return None
        layout = self._checkpoint.eight_bit_layout(name, part)
        if layout is None:
            return None
        self.shapes[name] = shape
        return EightBitPart.declared(layout, self._checkpoint.dtype_of(name))

    def release(self, name: str) -> None:
        """Do nothing: no tensor is held."""


class DummyWeights:
    """Random tensors of plausible scale, the same for the same seed and name (float32)."""

    def __init__(self, seed: int = 0, gain: float = 1.0) -> None:
        self._seed = seed
        self._gain = gain

    def holds(self, name: str) -> bool:
        """Return false: any spelling will do."""
        return False

    def differs(self, name: str, other: str) -> bool:
        """Return false: there is no tensor but those that are asked for."""
        return False

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        return part.of(self._whole(name, shape))

    def _whole(self, name: str, shape: Shape) -> Tensor:
        digest = blake2b(f"{self._seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "A_log":  # decay rates of 1 to 16, as Mamba-2 starts with
            return torch.rand(shape, generator=generator).mul(15).add(1).log()
        if leaf == "dt_bias":  # steps of 0.001 to 0.1 after softplus
            step = torch.rand(shape, generator=generator).mul(4.6).sub(6.9).exp()
            return step.add(torch.expm1(-step).neg().log())
        values = torch.randn(shape, generator=generator)
        if leaf == "bias":
            return values * 0.02
        if len(shape) == 1:  # norm weights, D
            return 1 + values * 0.02
        return values * (self._gain / math.sqrt(shape[-1]))

    def release(self, name: str) -> None:
        """Do nothing: every tensor was made for its caller."""


class Checkpoint(EightBitSource):
    """The safetensors of a model folder, one file or sharded by an index; memory-mapped.

    8-bit weights are read as if they were numbers of `dtype`; see `expand`. Their scales are no
    tensors of the model.
    """

    def __init__(
        self,
        folder: Path,
        progress: Progress | None = None,
        dtype: torch.dtype = torch.float32,
        block: tuple[int, int] = BLOCK,
        ignored: Iterable[str] = (),
        kept: Collection[torch.dtype] = EIGHT_BIT,
    ) -> None:
        """block: the rows and columns of an 8-bit weight that share a scale, where scales go by
        block.
        ignored: patterns (as of a shell) of tensors that a checkpoint may hold without use. 8-bit
        weights among them may be at fault, until `check` finds that the model needs them.
        kept: dtypes of 8-bit weights that products read as they are (`eight_bit`).
        """
        self.folder = folder
        self._progress = progress
        self._dtype = dtype
        self._begun: set[str] = set()  # tensors
        self._loaded = 0
        self._total = 0
        self._differing: dict[tuple[str, str], bool] = {}  # pairs that were compared
        index = folder / INDEX_FILE
        if index.is_file():
            self._files = _indexed_files(folder, index)
        elif (folder / SINGLE_FILE).is_file():
            whole = WeightFile(folder / SINGLE_FILE)
            self._files = dict.fromkeys(whole.entries, whole)
        else:
            raise WeightsError(
                f"{folder} holds no weights: expected {SINGLE_FILE}, or {INDEX_FILE} and the "
                "files that it names (other formats are not read)"
            )
        self._ignored = tuple(ignored)
        self._kept = kept
        entries = {name: file.entries[name] for name, file in self._files.items()}
        pairs = pair_scales(entries, block)
        self._scales = pairs.scales
        self._faults = pairs.faults
        check_faults([f.text for f in pairs.faults if not self._is_ignored(f.name)], str(folder))

    @property
    def quantised(self) -> Set[str]:
        """The names of the weights that the files hold in 8 bits."""
        return self._scales.keys()

    def holds(self, name: str) -> bool:
        return name in self._files

    def differs(self, name: str, other: str) -> bool:
        """Compare two tensors, whatever their dtypes. A pair is read once. A tensor that is equal
        to another is no part of the model, and `check` lets it be.
        """
        if name not in self._files or other not in self._files:
            return False
        if (name, other) not in self._differing:
            self._differing[name, other] = not self._same(name, other)
        return self._differing[name, other]

    def _same(self, name: str, other: str) -> bool:
        first, second = (self._files[n].entries[n] for n in (name, other))
        same = first.shape == second.shape and all(
            _equal(ours, theirs)
            for ours, theirs in zip(self._pieces(name), self._pieces(other), strict=True)
        )
        self.release(name)
        return same

    def _pieces(self, name: str) -> Iterator[Tensor]:
        """Yield the rows of a tensor, some at a time, before they are rounded to `dtype`."""
        file = self._files[name]
        rows = torch.split(file.tensor(name), _COMPARED_ROWS)
        if name not in self._scales:
            yield from rows
            return
        first = 0
        for piece in rows:
            part = WeightPart(0, (range(first, first + len(piece)),))
            yield self._expanded(name, piece, part, torch.float32)
            first += len(piece)

    def check(
        self,
        required: Mapping[str, Shape],
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """Compare with what the model needs; raises one WeightsError that names every fault.

        reasons: why the model needs a tensor, to be told where that one is missing.
        """
        unreadable = [fault.text for fault in self._faults if fault.weight in required]
        unreadable += [
            f"{zero_point_of(name)} is not 0, from which the numbers of {name} are read"
            for name in required
            if self._is_shifted(name)
        ]
        check_faults(unreadable, str(self.folder))
        equal = {name for (name, _), differs in self._differing.items() if not differs}
        scales = {scale.name for scale in self._scales.values()}
        missing = [
            f"{name} ({reasons[name]})" if reasons and name in reasons else name
            for name in required
            if name not in self._files
        ]
        extra = [
            name
            for name in self._files
            if name not in required
            and name not in equal
            and name not in scales
            and not is_unused_companion(name)
            and not self._is_ignored(name)
        ]
        misshapen = [
            f"{name} is {list(self._files[name].entries[name].shape)}, expected {list(shape)}"
            for name, shape in required.items()
            if name in self._files and self._files[name].entries[name].shape != shape
        ]
        faults = [
            _listed(what, found)
            for what, found in (
                ("missing", missing),
                ("not part of the model", extra),
                ("of the wrong shape", misshapen),
            )
            if found
        ]
        if faults:
            raise WeightsError(
                f"the weights in {self.folder} do not fit its config.json. Tensors "
                + "; tensors ".join(faults)
            )
        self._total = sum(self._files[name].entries[name].nbytes for name in required)

    def _is_ignored(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._ignored)

    def _is_shifted(self, name: str) -> bool:
        """Return true for an 8-bit weight whose zero points are not all 0."""
        zeros = zero_point_of(name)
        if name not in self._scales or zeros not in self._files:
            return False
        return bool(self._files[zeros].tensor(zeros).float().any())

    def tensor(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> Tensor:
        """Read `part`; the progress counts each tensor once, whole."""
        found = self._read(name, part)
        if name in self._scales:
            found = self._expanded(name, found, part, self._dtype)
            self.release(name)
        return found if part.spans else found.view(shape)

    def eight_bit_layout(self, name: str, part: WeightPart = WHOLE) -> EightBitLayout | None:
        """Return the scales of `part` as `eight_bit` gives them, by the headers alone."""
        if not self.keeps(name):
            return None
        return EightBitLayout.of(
            self._files[name].entries[name].shape, self._scales[name].blocks, part
        )

    def keeps(self, name: str) -> bool:
        """Return true for an 8-bit weight that products read as it is."""
        return name in self._scales and self.dtype_of(name) in self._kept

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype in which the files have a tensor."""
        return self._files[name].entries[name].dtype

    def eight_bit(self, name: str, shape: Shape, part: WeightPart = WHOLE) -> EightBitPart | None:
        layout = self.eight_bit_layout(name, part)
        if layout is None:
            return None
        return EightBitPart.read(layout, self._read(name, part), self._scale_values(name))

    def _read(self, name: str, part: WeightPart) -> Tensor:
        if name not in self._begun:
            self._begun.add(name)
            self._loaded += self._files[name].entries[name].nbytes
        if self._progress is not None:
            self._progress(self._loaded, self._total)
        return self._files[name].tensor(name, part)

    def _expanded(self, name: str, values: Tensor, part: WeightPart, dtype: torch.dtype) -> Tensor:
        return expand(values, self._scale_values(name), self._scales[name].blocks, part, dtype)

    def _scale_values(self, name: str) -> Tensor:
        """Return the scales of a weight, one a block, of as many dimensions: float32."""
        scale = self._scales[name]
        stored = self._files[scale.name].tensor(scale.name)
        return scale_values(stored).view(scale.shape(self._files[name].entries[name].shape))

    def release(self, name: str) -> None:
        self._files[name].release(name)


def holds_weights(folder: Path) -> bool:
    """Return true if there are weights in `folder`."""
    return any((folder / name).is_file() for name in (INDEX_FILE, SINGLE_FILE))


def tensor_names(folder: Path) -> Set[str]:
    """Return the names of the tensors in a folder that holds weights. Raises WeightsError."""
    index = folder / INDEX_FILE
    if index.is_file():
        return _weight_map(index).keys()
    return WeightFile(folder / SINGLE_FILE).entries.keys()


def _equal(first: Tensor, second: Tensor) -> bool:
    wide = torch.promote_types(first.dtype, second.dtype)
    return torch.equal(first.to(wide), second.to(wide))


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED_AT_MOST])
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return f"{what} ({len(names)}): {shown}{more}"


def _weight_map(index: Path) -> dict[str, str]:
    """Return the name of each tensor's file."""
    try:
        table = json.loads(index.read_text(encoding="utf-8"))
        return {str(name): str(file) for name, file in table["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f'cannot read {index}: {error}; expected JSON with a "weight_map" of tensor names '
            "to file names"
        ) from error


def _indexed_files(folder: Path, index: Path) -> dict[str, WeightFile]:
    """Return each tensor's file, by the index."""
    places = _weight_map(index)
    absent = sorted({file for file in places.values() if not (folder / file).is_file()})
    if absent:
        raise WeightsError(f"{index} names files that {folder} lacks: {', '.join(absent)}")
    files = {file: WeightFile(folder / file) for file in sorted(set(places.values()))}
    lost = [f"{name} in {file}" for name, file in places.items() if name not in files[file].entries]
    if lost:
        raise WeightsError(f"{index} promises tensors that {_listed('its files lack', lost)}")
    return {name: files[file] for name, file in places.items()}
