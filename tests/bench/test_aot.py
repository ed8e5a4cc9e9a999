"""Every GPU kernel compiles for a Hopper and for a Blackwell at the sizes of real models, and fits
on them."""

import ast
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from step_driver import StepDriver
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from baton.bench.gpu import kernel_cases
from baton.bench.gpu.aot import BLACKWELL, HOPPER, SHARED_LIMIT, Compiled, compile_for
from baton.bench.gpu.kernel_cases import cases
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.models import MODELS as ENGINE_MODELS
from baton.bench.gpu.models import write_config
from baton.bench.gpu.sizes import (
    KIMI_LINEAR,
    LFM2,
    MODELS,
    NEMOTRON_9B,
    ONES,
    QWEN3_NEXT,
    TINY,
    Sizes,
)
from baton.engine.assembly.loader import build_model
from baton.engine.loading.weights import DeclaredWeights
from baton.engine.models.family_table import read_config
from baton.kernels.triton import triton_kernels, verify
from baton.kernels.triton.triton_kernels import TritonKernels

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, running a kernel compiles it"
)
# bfloat16 alone: in float32, which models have for tests of parity only, some kernels spill.
MAKE = Maker(torch.device("meta"), torch.bfloat16)
# Compiled with every other test: one of each kind.
FEW = {
    NEMOTRON_9B: {
        "mamba2_step",
        "mamba2_verify",
        "mamba2_commit",
        "mamba2_prefill",
        "attn_decode",
        "attn_prefill",
        "sample",
        "sample_filtered",
    },
    QWEN3_NEXT: {
        "delta_step",
        "delta_verify",
        "delta_commit",
        "delta_prefill",
        "moe_decode",
        "moe_prefill",
        "moe_decode_fp8",
        "linear_fp8",
        "linear_fp8_prompt",
    },
    KIMI_LINEAR: {"delta_prefill", "delta_verify", "delta_commit", "mla_decode", "mla_prefill"},
    LFM2: {"conv_verify", "conv_commit", "conv_prefill"},
    ONES: {"delta_prefill"},
}


# For a Blackwell, Triton 3.7 asks ptxas for a register allocation that avoids a fault of its own
# (--regAllocOptLevel=2): two kernels then spill two to four registers, without it none.
SPILLED = {"merge_parts", "_outputs"}
MOST_SPILLED = 16  # bytes of a thread


def misfits(compiled: list[Compiled], target: GPUTarget) -> list[str]:
    """Return the kernels that do not fit on a GPU, or spill more than is known of."""
    known = SPILLED if target is BLACKWELL else ()
    return [
        str(kernel)
        for kernel in compiled
        if not kernel.fits
        and (kernel.name not in known or (kernel.stack or 0) > MOST_SPILLED
             or kernel.shared > SHARED_LIMIT)
    ]  # fmt: skip


@pytest.mark.parametrize("target", [HOPPER, BLACKWELL], ids=["sm_90", "sm_100"])
def test_kernels_fit_in_shared_memory_and_spill_nothing(target: GPUTarget) -> None:
    with compile_for(target) as compiled:
        for sizes, names in FEW.items():
            for case in cases(sizes, MAKE):
                if case.name in names:
                    case.run()
    assert len({kernel.name for kernel in compiled}) >= 20
    assert not misfits(compiled, target)
    assert not [kernel.name for kernel in compiled if kernel.long_divisions]


# By sizes of models, the kernels that read the links of trees, and where they are called from.
LINKED = {
    NEMOTRON_9B: {"mamba2_verify": verify, "attn_decode": kernel_cases},
    QWEN3_NEXT: {"delta_verify": verify},
    KIMI_LINEAR: {"delta_verify": verify, "mla_decode": kernel_cases},
    LFM2: {"conv_verify": verify},
}
CALLED = {"attn": "paged_attn_decode", "delta": "gated_delta_verify", "conv": "gated_conv_verify"}


@pytest.mark.parametrize("target", [HOPPER, BLACKWELL], ids=["sm_90", "sm_100"])
def test_kernels_fit_where_they_read_links_too(
    target: GPUTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, module in {name: at for each in LINKED.values() for name, at in each.items()}.items():
        called = CALLED.get(name.split("_")[0], name)
        linked = partial(getattr(module, called), nodes=MAKE.ints([1]))
        monkeypatch.setattr(module, called, linked)
    with compile_for(target) as compiled:
        for sizes, names in LINKED.items():
            for case in cases(sizes, MAKE):
                if case.name in names:
                    case.run()
    assert len({kernel.name for kernel in compiled}) >= 5
    assert not misfits(compiled, target)
    assert not [kernel.name for kernel in compiled if kernel.long_divisions]


# Tiles of keys and of values that attention has in shared memory: one, or more, is loaded while
# another is multiplied.
TILES = {
    NEMOTRON_9B: {"_attend_part": 2, "_attend": 3},
    QWEN3_NEXT: {"_attend_part": 2, "_attend": 2},
    KIMI_LINEAR: {"_attend_latents": 2},
}


@pytest.mark.parametrize("sizes", TILES, ids=lambda sizes: sizes.name)
def test_attention_loads_the_next_tile_while_it_multiplies_one(sizes: Sizes) -> None:
    with compile_for(HOPPER) as compiled:
        for case in cases(sizes, MAKE):
            if case.name in ("attn_decode", "attn_prefill", "mla_decode"):
                case.run()
    for name, expected in TILES[sizes].items():
        (kernel,) = (kernel for kernel in compiled if kernel.name == name)
        rings = re.findall(r"memdesc<(\d+)x\d+x\d+xbf16[^>]*mutable", kernel.ttgir)
        assert set(map(int, rings)) == {expected}, kernel
        waits = map(int, re.findall(r"async_wait .*num = (\d+)", kernel.ttgir))
        # Where there is room for two, the next one is asked for after one has been awaited.
        ahead = name == "_attend" and expected == 2
        assert ahead or max(waits) > 0, "every tile is awaited when it has just been asked for"
        assert kernel.fits, kernel


# Steps' kernels whose programs are tokens; all those of prompts are.
A_TOKEN_EACH = {"rms_norm", "swiglu", "gate", "rope", "apply_partial_rope", "kv_write"}


def test_no_number_of_tokens_is_too_large_for_a_grid(monkeypatch):
    """A grid's second and third axes end at 65535; its first has room for any prompt."""
    grids: dict[str, tuple[int, ...]] = {}

    def launch(self: JITFunction, *args: object, grid: tuple[int, ...], **options: object) -> None:
        grids[self.__name__] = grid

    monkeypatch.setattr(JITFunction, "run", launch)
    for case in cases(replace(TINY, prompt=1 << 17, decode_rows=1 << 17), MAKE):
        if case.name.endswith("_prefill") or case.name in A_TOKEN_EACH:
            case.run()
    assert {"_convolve", "_outputs", "_attend_expanded", "_combine", "_rotate"} <= grids.keys()
    assert not {name: grid for name, grid in grids.items() if max(grid[1:], default=0) > 65535}
    assert sum(1 << 17 in grid for grid in grids.values()) >= 6


def launched() -> set[str]:
    """Names of the kernels that the sources launch: `kernel[grid](...)`."""
    trees = [
        ast.parse(file.read_text()) for file in Path(triton_kernels.__file__).parent.glob("*.py")
    ]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {ast.unparse(c.func.value) for c in calls if isinstance(c.func, ast.Subscript)}


@pytest.mark.chaos
@pytest.mark.parametrize("target", [HOPPER, BLACKWELL], ids=["sm_90", "sm_100"])
def test_all_of_them_do_at_the_sizes_of_every_model(target: GPUTarget) -> None:
    with compile_for(target) as compiled:
        for sizes in (*MODELS, ONES, replace(ONES, channel_decay=True)):
            for case in cases(sizes, MAKE):
                case.run()
    assert {kernel.name for kernel in compiled} == launched()
    assert not misfits(compiled, target)
    assert not [kernel.name for kernel in compiled if kernel.long_divisions]


@pytest.mark.chaos
@pytest.mark.parametrize("name", ENGINE_MODELS)
def test_whole_models_launch_without_a_look_at_the_device(name: str, tmp_path: Path) -> None:
    """The models have their real sizes, on tensors without data: any read of one would raise."""
    folder = write_config(tmp_path / "model", ENGINE_MODELS[name], small=False)
    config = read_config(folder, torch.bfloat16, torch.float32)
    meta = torch.device("meta")
    with compile_for(HOPPER) as compiled:
        model = build_model(config, DeclaredWeights(), meta, kernels=TritonKernels())
        driver = StepDriver(model, pages=300, page_size=64, device=meta)
        rows = [driver.start([5] * length) for length in (700, 64, 3)]
        driver.step(prefill=[(row, len(row.tokens)) for row in rows])
        for row in rows:
            row.tokens.append(3)
        driver.step(decode=rows)
    assert compiled and not [str(kernel) for kernel in compiled if not kernel.fits]
