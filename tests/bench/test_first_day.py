"""The scripts of the first day with a GPU, as far as a machine without one can run them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.bench.gpu.aot import HOPPER, compile_for
from baton.bench.gpu.first_day.compile_stalls import watched_compilations
from baton.bench.gpu.first_day.parity_cases import ParityCase, parity_cases
from baton.bench.gpu.first_day.real_parity import compared
from baton.bench.gpu.first_day.run import SCRIPTS, verdict
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.parts import Line
from baton.bench.gpu.sizes import TINY
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it runs for real, not in a test")
def test_a_dry_run_tells_one_verdict_and_one_object_a_script() -> None:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu.first_day", "--dry-run"],
        cwd=ROOT, env=os.environ | threads | {"PYTHONPATH": str(ROOT / ".types")},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = done.stdout.splitlines()
    found = [json.loads(line) for line in told if line.startswith("{")]
    assert [script["script"] for script in found] == [task.name for task in SCRIPTS]
    for script in found:
        assert not script["failed"]
        assert f"{script['script']}: ok, {len(script['lines'])} lines" in told
    compared = {line["what"] for line in found[0]["lines"]}
    assert {"tiny mamba2_prefill, bfloat16 states", "tiny KDA delta_prefill"} <= compared


def test_without_a_gpu_it_says_what_it_can_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu.first_day"], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": str(ROOT / ".types")}, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "--dry-run" in done.stderr


def test_a_verdict_names_the_first_fault() -> None:
    lines = [Line("a", "ok"), Line("b", "FAR", failed=True), Line("c", "FAR", failed=True)]
    assert verdict("real_parity", lines[:1]) == "real_parity: ok, 1 lines"
    assert verdict("real_parity", lines) == "real_parity: 2 of 3 lines FAILED, first b: FAR"


def step() -> ParityCase:
    cases = parity_cases(TINY, Maker(torch.device("cpu"), torch.float32))
    (case,) = (case for case in cases if case.name == "mamba2_step, float32 states")
    return case


def sound(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    """Leave everything as it is."""


def scaled(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    result *= 1.01


def lost(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    result[0, 0] = torch.nan


def stale(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    pools[1][write_slots[0]] = 0


def unsteady(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    result *= 1 + 1e-6 * len(calls)


def in_place(result: Tensor, pools: list[Tensor], write_slots: Tensor, calls: list[int]) -> None:
    if write_slots[0] > 1:
        pools[0][write_slots[0]] *= 1 + 1e-6


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (sound, ""),
        (scaled, "FAR"),
        (lost, "FAR"),
        (stale, "FAR"),
        (unsteady, "OTHER BITS when called again"),
        (in_place, "OTHER BITS in other slots"),
    ],
)
def test_kernels_with_a_fault_are_noticed(
    fault, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, calls = step(), []

    class Faulty(type(TORCH)):
        @staticmethod
        def mamba2_step(weights, token, conv, ssm, read_slots, write_slots, has_initial=None):
            calls.append(1)
            slots = (read_slots, write_slots, has_initial)
            result = TORCH.mamba2_step(weights, token, conv, ssm, *slots)
            fault(result, [conv, ssm], write_slots, calls)
            return result

    kernels: Kernels = Faulty()
    assert compared(case, kernels)[0] == told
    assert calls


@triton.jit
def _doubled(x, number, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i, mask=i < number), mask=i < number)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver, which would launch")
def test_a_variant_is_counted_when_it_is_first_asked_for() -> None:
    values = torch.empty(64, device="meta")
    with compile_for(HOPPER), watched_compilations() as found:
        counts = []
        for number in (3, 5, 32, 48, 7):  # neither one nor divisible by 16; then divisible by it
            _doubled[(1,)](values, number, BLOCK=64)
            counts.append(len(found.seconds))
    assert counts == [1, 1, 2, 2, 2]
    assert all("_doubled" in name and seconds > 0 for name, seconds in found.seconds)
