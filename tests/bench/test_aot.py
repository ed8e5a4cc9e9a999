"""Every GPU kernel compiles for a Hopper at the sizes of real models, and fits on it."""

import pytest
import torch

from baton.bench.aot import HOPPER, compile_for
from baton.bench.gpu_cases import MODELS, Maker, cases

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, running a kernel compiles it"
)


# bfloat16 alone: in float32, which models have for tests of parity only, some kernels spill.
def test_kernels_fit_in_shared_memory_and_spill_nothing():
    make = Maker(torch.device("meta"), torch.bfloat16)
    with compile_for(HOPPER) as compiled:
        for sizes in MODELS:
            for case in cases(sizes, make):
                case.run()
    assert len({kernel.name for kernel in compiled}) >= 30
    assert not [str(kernel) for kernel in compiled if not kernel.fits]
