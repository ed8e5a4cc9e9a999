"""Triton's kernels beside torch's on one device, at the sizes of real models.

Each is also called twice for the same bits, and where it writes states, once in place and once to
other slots. Without a GPU the kernels are interpreted, at tiny sizes.
"""

import math
from dataclasses import replace
from functools import partial

import torch
import triton
from torch import Tensor

from baton.bench.gpu.first_day.parity_cases import ParityCase, Run, parity_cases
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.parts import Part
from baton.bench.gpu.sizes import MODELS, TINY, TINY_CHANNELS, Sizes
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH
from baton.kernels.triton.triton_kernels import TritonKernels

_LEAST_ROW_S = 5.0  # least time left to begin a row


def real_parity(part: Part) -> None:
    """Compare each kernel of each model, a line each."""
    if part.dry and not triton.knobs.runtime.interpret:
        part.add("parity", "not run", beside="without a GPU it needs TRITON_INTERPRET=1")
        return
    torch.manual_seed(0)
    for sizes in (TINY, TINY_CHANNELS) if part.dry else MODELS:
        _compare(sizes, part)


def _compare(sizes: Sizes, part: Part) -> None:
    if not part.dry:  # contexts of many pages, but few enough rows for torch's kernels
        sizes = replace(sizes, prompt=2048, context=3000, decode_rows=16)
    make = Maker(part.device, torch.float32 if part.dry else torch.bfloat16)
    for case in parity_cases(sizes, make):
        if sizes is TINY_CHANNELS and not case.name.startswith("delta"):
            continue
        what = f"{sizes.name} {case.name}"
        part.row(what, partial(_tell, case, what, part), _LEAST_ROW_S)


def _tell(case: ParityCase, what: str, part: Part) -> None:
    fault, worst = compared(case, TritonKernels())
    part.add(what, fault or "ok", beside=f"{worst:.0e} of {case.bound:.0e}", failed=bool(fault))


def compared(case: ParityCase, kernels: Kernels) -> tuple[str, float]:
    """Return what is wrong with `kernels`, or nothing, and their distance from torch's."""
    result, expected = _called(case.run, case, kernels), _called(case.run, case, TORCH)
    again = _called(case.run, case, kernels)
    worst = max(map(_distance, result, expected))
    if not worst < case.bound:  # a number that is none, too
        return "FAR", worst
    if not all(map(torch.equal, result, again)):
        return "OTHER BITS when called again", worst
    if case.moved is not None and not _moved_alike(case, result, kernels):
        return "OTHER BITS in other slots", worst
    return "", worst


def _called(run: Run, case: ParityCase, kernels: Kernels) -> list[Tensor]:
    """Return the result of a call, and the pools that it leaves."""
    pools = [pool.clone() for pool in case.pools]
    with torch.no_grad():
        return [run(kernels, pools), *pools]


def _moved_alike(case: ParityCase, result: list[Tensor], kernels: Kernels) -> bool:
    assert case.moved is not None
    moved = _called(case.moved, case, kernels)
    by = case.moved_by
    return torch.equal(result[0], moved[0]) and all(
        torch.equal(own[1 : by + 1], other[by + 1 : 2 * by + 1])
        for own, other in zip(result[1:], moved[1:], strict=True)
    )


def _distance(result: Tensor, expected: Tensor) -> float:
    """Return |result - expected| / |expected|; NaN where a number is not finite."""
    result, expected = result.double(), expected.double()
    if not torch.isfinite(result).all():
        return math.nan
    return float((result - expected).norm() / expected.norm().clamp(min=1e-30))
