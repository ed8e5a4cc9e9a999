"""The programs that Triton compiles: products of float32 keep their precision, and no thread
overwrites what another has still to load."""

import ast
import re
from pathlib import Path

import pytest
import torch

from baton.bench.gpu.aot import HOPPER, compile_for
from baton.bench.gpu.kernel_cases import cases
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.sizes import NEMOTRON_9B, TINY, TINY_CHANNELS
from baton.kernels.triton import ssd, triton_kernels
from baton.kernels.triton.prompt_chunks import prompt_chunks

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, running a kernel compiles it"
)
META = torch.device("meta")
# Cases whose kernels multiply blocks.
WITH_PRODUCTS = {
    "mamba2_prefill", "delta_prefill", "attn_decode", "attn_prefill", "mla_decode", "mla_prefill",
    "moe_prefill",
}  # fmt: skip


def multiplying() -> set[str]:
    """Names of the kernels that call `dot`, themselves or in a function beside them."""
    found = set()
    for file in Path(triton_kernels.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        calls = {
            f.name: {ast.unparse(c.func) for c in ast.walk(f) if isinstance(c, ast.Call)}
            for f in functions
        }
        called = {"dot", "tl.dot"}
        called |= {name for name, inner in calls.items() if inner & called}
        for f in functions:
            if calls[f.name] & called and "kernel" in map(ast.unparse, f.decorator_list):
                found.add(f.name)
    return found


def float_products(code: str) -> list[str]:
    """The lines of products of two blocks of float32."""
    lines = (line for line in code.splitlines() if re.search(r"\b(tt\.dot|warp_group_dot) ", line))
    return [line for line in lines if re.search(r"xf32.* \* .*xf32.*->", line)]


def test_no_product_of_float32_is_one_of_tf32() -> None:
    """A product that is asked for as tf32x3 becomes three; one that is asked for as ieee must not
    become one of tf32."""
    make = Maker(META, torch.float32)
    with compile_for(HOPPER) as compiled:
        for sizes, names in ((TINY, WITH_PRODUCTS), (TINY_CHANNELS, {"delta_prefill"})):
            for case in cases(sizes, make):
                if case.name in names:
                    case.run()
    multiply = [kernel for kernel in compiled if float_products(kernel.ttir)]
    assert {kernel.name for kernel in multiply} == multiplying()
    for kernel in multiply:
        written = float_products(kernel.ttir)
        exact = sum("inputPrecision = tf32x3" in product for product in written)
        assert exact in (0, len(written)), kernel
        if exact:
            assert len(float_products(kernel.ttgir)) == 3 * exact, kernel
        else:
            assert not re.search(r"inputPrecision = tf32\b", kernel.ttir), kernel
            assert ".tf32" not in kernel.ptx, kernel


def operations(code: str) -> list[str]:
    """The accesses of vectors and the barriers of a kernel in order."""
    found = re.findall(r"tt\.(load|store) [^\n]*tensor<|(?:ttg|gpu)\.(barrier)\b", code)
    return [access or barrier for access, barrier in found]


def test_a_window_is_loaded_before_any_of_it_is_stored() -> None:
    make = Maker(META, torch.bfloat16)
    (case,) = (case for case in cases(NEMOTRON_9B, make) if case.name == "mamba2_step")
    with compile_for(HOPPER) as compiled:
        case.run()
    (update,) = (kernel for kernel in compiled if kernel.name == "_conv_update")
    done = operations(update.ttgir)
    assert done.count("barrier") == 1
    before, after = done[: done.index("barrier")], done[done.index("barrier") :]
    # Three columns of the window, as many weights and the bias; after it, the window, the newest
    # input with its weight, and the output.
    assert before == ["load"] * 7
    assert after.count("store") == 4 and after.count("load") == 2


@pytest.mark.parametrize("states", [torch.float32, torch.bfloat16])
def test_a_rows_state_is_loaded_before_any_of_it_is_stored(states: torch.dtype) -> None:
    """A row may be read from the slot that it is written to; threads load other values than they
    store."""
    heads, head_dim, state, tokens = 128, 80, 128, 1024
    make = Maker(META, torch.bfloat16)
    chunks = prompt_chunks((0, tokens), (0,), 128, None).on(META)(make.rows([tokens]))
    with compile_for(HOPPER) as compiled:
        ssd.ssd_prompts(
            make.floats(tokens, heads, head_dim), make.floats(tokens, heads), make.wide(heads),
            make.floats(tokens, 8, state), make.floats(tokens, 8, state), make.wide(heads),
            make.wide(heads), (0.0, 1.0), make.floats(2, heads, head_dim, state, dtype=states),
            chunks,
        )  # fmt: skip
    (passed,) = (kernel for kernel in compiled if kernel.name == "_pass_states")
    done = operations(passed.ttgir)
    assert done[: done.index("barrier")] == ["load"]
    assert done.index("barrier") < done.index("store")
