"""The device of the Triton kernels' tests: a GPU, or the CPU under Triton's interpreter."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Bounds on |out - ref| / |ref|, by the dtype that products are taken in. In bfloat16 prompts round
# several times on the way; ROUNDING is once.
BOUND = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
ROUNDING = 2**-8

T = TypeVar("T")


def here(value: T) -> T:
    """A copy on DEVICE: of a tensor with its strides, or of the tensors of a dataclass, list or
    dictionary."""
    return cast(T, _moved(value))


def _moved(value: Any) -> object:
    if isinstance(value, Tensor):
        whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
        moved = whole.to(DEVICE, copy=True)
        return moved.as_strided(value.shape, value.stride(), value.storage_offset())
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _moved(getattr(value, f.name)) for f in fields(value)})
    if isinstance(value, dict):
        return {key: _moved(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(inner) for inner in value)
    return value


def assert_near(out: Tensor, expected: Tensor, bound: float) -> None:
    """No element is missing, and the distance is a small part of the whole."""
    out, expected = out.detach().cpu().double(), expected.detach().cpu().double()
    assert out.shape == expected.shape
    assert torch.isfinite(out).all(), "an element was not written, or is not finite"
    size = expected.norm()
    error = float((out - expected).norm() / size) if size else float((out - expected).norm())
    assert error < bound, f"relative error {error:.2e}, at most {bound:.0e} expected"


def assert_pools_near(pool: Tensor, expected: Tensor, bound: float) -> None:
    """Written slots are near the reference's; all others, poison too, are as they were."""
    pool, expected = pool.cpu(), expected.cpu()
    assert torch.equal(pool.isnan(), expected.isnan()), "a slot holds NaN where it should not"
    assert_near(pool.nan_to_num(), expected.nan_to_num(), bound)
