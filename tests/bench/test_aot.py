"""Every GPU kernel compiles for a Hopper at the sizes of real models, and fits on it."""

import pytest
import torch

from baton.bench.aot import HOPPER, compile_for
from baton.bench.gpu_cases import KIMI_LINEAR, MODELS, NEMOTRON_9B, QWEN3_NEXT, Maker, cases

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, running a kernel compiles it"
)
# bfloat16 alone: in float32, which models have for tests of parity only, some kernels spill.
MAKE = Maker(torch.device("meta"), torch.bfloat16)
# Compiled with every other test: one of each kind.
FEW = {
    NEMOTRON_9B: {"mamba2_step", "mamba2_prefill", "attn_decode", "attn_prefill", "sample"},
    QWEN3_NEXT: {"delta_step", "delta_prefill", "moe_decode"},
    KIMI_LINEAR: {"mla_decode"},
}


def test_kernels_fit_in_shared_memory_and_spill_nothing():
    with compile_for(HOPPER) as compiled:
        for sizes, names in FEW.items():
            for case in cases(sizes, MAKE):
                if case.name in names:
                    case.run()
    assert len({kernel.name for kernel in compiled}) >= 20
    assert not [str(kernel) for kernel in compiled if not kernel.fits]


@pytest.mark.chaos
def test_all_of_them_do_at_the_sizes_of_every_model():
    with compile_for(HOPPER) as compiled:
        for sizes in MODELS:
            for case in cases(sizes, MAKE):
                case.run()
    assert len({kernel.name for kernel in compiled}) >= 35
    assert not [str(kernel) for kernel in compiled if not kernel.fits]
