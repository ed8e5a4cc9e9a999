"""Native products, and what is done to rows, against float64 in poisoned memory; recordings."""

import pytest
import torch
import torch.nn.functional as F
from kernels.native_cases import assert_near, strided
from torch import Tensor

from baton.kernels.elementwise import (
    add_scaled_native,
    concat_native,
    geglu_native,
    relu2_native,
    scaled_native,
    select_rows_native,
    sigmoid_gated_native,
    swiglu_native,
)
from baton.kernels.linear import PackedWeight, embedding_native, linear_native
from baton.kernels.native import recorder
from baton.kernels.native.library import load
from baton.kernels.native.recorder import Native, NotRecordableError
from baton.kernels.native.workspace import Workspace
from baton.kernels.norm import rms_norm, rms_norm_native
from baton.kernels.rope import apply_rope, apply_rope_native, rope_cache


def stored(weight: Tensor, kind: str) -> Tensor | PackedWeight:
    """A matrix in float32, as a model of that kind keeps it."""
    if kind.startswith("packed"):
        return PackedWeight.of(weight.to(getattr(torch, kind.removeprefix("packed "))))
    return weight.to(getattr(torch, kind))


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 6, 7, 13, 16, 33, 128, 150])
@pytest.mark.parametrize("columns, outputs", [(1, 1), (31, 5), (64, 64), (100, 131), (768, 37)])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_linear(native, rng, rows, columns, outputs, kind):
    x, bias = strided(rows, columns, rng), torch.randn(outputs)
    weight = torch.randn(outputs, columns).to(getattr(torch, kind))
    # Where the CPU multiplies bfloat16 values, the activations are rounded to them.
    seen = x.bfloat16() if kind == "bfloat16" and native.library.dots_bf16 else x
    for b in (None, bias):
        wanted = F.linear(seen.double(), weight.double(), None if b is None else b.double())
        assert_near(linear_native(native, x, weight, b), wanted, 2e-6)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 5, 6, 7, 13, 33, 49, 150])
@pytest.mark.parametrize(
    "columns, outputs", [(1, 1), (31, 5), (64, 64), (100, 131), (33, 47), (768, 37)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_packed_weight_multiplies_as_it_did_before(native, rng, rows, columns, outputs, dtype):
    x, bias = strided(rows, columns, rng), torch.randn(outputs)
    weight = torch.randn(outputs, columns).to(dtype)
    pack = PackedWeight.of(weight)
    assert pack.shape == weight.shape and torch.equal(pack.dense(), weight)
    rounded, before = x.to(dtype).double(), torch.get_num_threads()
    for b, threads in ((None, 1), (bias, 2), (bias, 6)):
        wanted = F.linear(rounded, weight.double(), None if b is None else b.double())
        try:
            torch.set_num_threads(threads)
            y = linear_native(native, x, pack, b)
        finally:
            torch.set_num_threads(before)
        assert_near(y, wanted, 2e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "packed bfloat16", "packed float32"])
def test_a_row_is_the_same_bits_in_every_batch_and_on_every_number_of_threads(native, rng, kind):
    columns, outputs = rng.randrange(20, 200), rng.randrange(40, 300)
    x, weight = torch.randn(300, columns), stored(torch.randn(outputs, columns), kind)
    whole = linear_native(native, x, weight)
    threads = torch.get_num_threads()
    try:
        for rows in (1, 2, 3, 4, 6, 9, 17, 49, 64, 128, 129, 200):
            first = rng.randrange(300 - rows)
            some = slice(first, first + rows)
            torch.set_num_threads(rng.randrange(1, 9))
            assert torch.equal(linear_native(native, x[some], weight), whole[some])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "packed bfloat16", "packed float32"])
@pytest.mark.parametrize("width", [1, 16, 50, 51])
def test_embedding(native, rng, kind, width):
    table = stored(torch.randn(30, width), kind)
    dense = (table if isinstance(table, Tensor) else table.dense()).float()
    for rows in (0, 1, 9):
        ids = torch.randint(30, (rows,))
        assert torch.equal(embedding_native(native, ids, table), dense[ids])


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("width", [1, 15, 16, 100, 1030])
def test_rms_norm(native, rng, rows, width):
    x, weight = strided(rows, width, rng) * 3, torch.randn(width)
    wanted = rms_norm(x.double(), weight, 1e-5)
    assert_near(rms_norm_native(native, x, weight, 1e-5), wanted, 2e-6)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("heads, width", [(1, 7), (3, 16), (4, 50)])
def test_rms_norm_of_each_head(native, rng, rows, heads, width):
    x = strided(rows, heads * width, rng).unflatten(1, (heads, width))
    weight = torch.randn(heads, width)
    got = rms_norm_native(native, x, weight, 1e-5)
    assert_near(got, rms_norm(x.double(), weight, 1e-5), 2e-6)


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("width", [1, 17, 512, 1500])
def test_what_layers_do_in_between(native, rng, rows, width):
    x, y = torch.randn(rows, width) * 5, torch.randn(rows, width)
    alpha = rng.uniform(-2, 2)
    total = x.double() + alpha * y.double()  # of one value each, perhaps next to nothing
    assert_near(add_scaled_native(native, x, y, alpha), total, 2e-6, scale=5.0)
    assert_near(scaled_native(native, x, alpha), x.double() * alpha, 2e-6)
    assert scaled_native(native, x, 1.0) is x
    assert_near(relu2_native(native, x), F.relu(x.double()).square(), 2e-6)
    for gate in (strided(rows, width, rng), strided(rows, 1, rng)):
        wanted = x.double() * gate.double().sigmoid()
        assert_near(sigmoid_gated_native(native, x, gate), wanted, 2e-6)
    both = torch.cat((x, y), dim=1)
    assert_near(swiglu_native(native, both), F.silu(x.double()) * y.double(), 2e-6)
    wanted = F.gelu(x.double()) * y.double()
    largest = max((1.0, *wanted.abs().flatten().tolist()))  # one value may be next to nothing
    assert_near(geglu_native(native, both), wanted, 2e-6, largest)
    assert torch.equal(concat_native(native, x, y[:, :5].contiguous()), torch.cat((x, y[:, :5]), 1))
    if rows:
        chosen = torch.randint(rows, (3,))
        assert torch.equal(select_rows_native(native, x, chosen), x[chosen])


def test_silu_of_very_large_values_neither_overflows_nor_loses_its_sign(native):
    gate = torch.tensor([[-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30]])
    got = swiglu_native(native, torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(got, F.silu(gate), atol=1e-30, rtol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 6])
@pytest.mark.parametrize("heads, head_dim, rotary", [(1, 2, 2), (3, 20, 12), (5, 64, 64)])
def test_rope(native, rng, rows, heads, head_dim, rotary):
    cache = rope_cache(torch.rand(rotary // 2), 50)
    x = strided(rows, heads * head_dim, rng).unflatten(1, (heads, head_dim))
    positions = torch.randint(50, (rows,))
    wanted = apply_rope(x, cache, positions).double()
    assert_near(apply_rope_native(native, x, cache, positions), wanted, 2e-6)


def test_a_recording_runs_again_on_new_inputs():
    library = load()
    if library is None:
        pytest.skip("no C++ compiler")
    native, weight = Native(library), torch.randn(20, 12)
    x = torch.zeros(3, 12)

    def function() -> Tensor:
        for _ in range(5):  # memory of dropped results is used again
            y = linear_native(native, add_scaled_native(native, x, x, 1.0), weight)
        return swiglu_native(native, y)

    recording, out = native.record(function)
    for _ in range(3):
        x.normal_()
        recording.run()
        gate, up = (2 * x.double() @ weight.double().T).chunk(2, dim=1)
        assert_near(out, F.silu(gate) * up, 2e-6)


def test_what_is_not_native_cannot_be_recorded(native):
    x = torch.ones(3)
    with pytest.raises(NotRecordableError, match="mul"):
        native.record(lambda: x.mul(2))
    assert torch.equal(scaled_native(native, torch.ones(1, 3), 2.0), torch.full((1, 3), 2.0))


def test_the_arena_hands_out_what_was_dropped_and_nothing_that_lives():
    arena = recorder.Arena()
    first = arena.empty((4, 8), torch.float32)
    place = first.data_ptr()
    view = first[1:3, 2:]
    del first
    assert arena.empty((4, 8), torch.float32).data_ptr() != place  # the view still looks at it
    del view
    assert arena.empty((2, 16), torch.float32).data_ptr() == place


def test_a_workspace_gives_a_dropped_block_to_what_fits_and_keeps_what_lives():
    workspace = Workspace()
    first = workspace.empty((256, 100), torch.float32)
    place = first.data_ptr()
    view = first[1:3, 2:]
    del first
    other = workspace.empty((256, 100), torch.float32)
    assert other.data_ptr() != place  # the view still looks at it
    del view
    assert workspace.empty((50_000,), torch.bfloat16).data_ptr() == place  # half as large
    assert workspace.empty((100, 200), torch.float32).shape == (100, 200)
    for values in (0, 1, 20_000, 1 << 20):
        assert workspace.empty((values,), torch.float32).fill_(1.0).sum() == values


def test_a_workspace_spares_its_large_blocks_for_large_tensors():
    workspace = Workspace()
    place = workspace.empty((1 << 20,), torch.float32).data_ptr()
    assert workspace.empty((1 << 15,), torch.float32).data_ptr() != place
    assert workspace.empty((1 << 19,), torch.float32).data_ptr() == place
