"""The interpreter that these tests run on a CPU: its shortcut leaves what it does as it is."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton_device import DEVICE


@triton.jit
def _plus_one(values):
    return values + tl.full((4,), 1.0, tl.float32)


@triton.jit
def _alone(out_ptr):
    lanes = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out_ptr + lanes, lanes.to(tl.float32))


@triton.jit
def _calling(out_ptr):
    lanes = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(out_ptr + lanes, _plus_one(_plus_one(lanes.to(tl.float32))))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU interprets nothing")
def test_the_language_is_replaced_once_a_launch_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced, replace, load, arange = [], interpreter._patch_builtin, tl.load, tl.arange

    def counted(package: object, *more: object) -> None:
        replaced.append(package)
        replace(package, *more)

    monkeypatch.setattr(interpreter, "_patch_builtin", counted)
    counts = []
    for kernel, plus in ((_alone, 0), (_calling, 2), (_alone, 0)):
        out = torch.full((8,), torch.nan)
        kernel[(2,)](out)
        assert out.tolist() == [lane + plus for lane in range(8)]
        assert tl.load is load and tl.arange is arange
        counts.append(len(replaced))
        replaced.clear()
    assert counts[0] == counts[1] == counts[2] > 0
