"""The scripts of the first day with a GPU, as far as a machine without one can run them."""

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.bench.gpu.aot import HOPPER, compile_for
from baton.bench.gpu.first_day.compile_stalls import watched_compilations
from baton.bench.gpu.first_day.memory import GpuBytes, Told
from baton.bench.gpu.first_day.parity_cases import ParityCase, parity_cases
from baton.bench.gpu.first_day.real_parity import compared
from baton.bench.gpu.first_day.run import SCRIPTS, verdict
from baton.bench.gpu.first_day.watched import (
    Activity,
    WatchedStream,
    idle_share,
    percentile,
    profiled,
    waiting_calls,
    watched_waits,
)
from baton.bench.gpu.maker import Maker
from baton.bench.gpu.parts import Limits, Line, Part
from baton.bench.gpu.sizes import TINY
from baton.engine.stream.forward_stream import ThreadStream
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH, TorchKernels

ROOT = Path(__file__).resolve().parent.parent.parent
PATH = os.pathsep.join((str(ROOT / ".types"), str(ROOT / "examples")))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it runs for real, not in a test")
def test_a_dry_run_tells_one_verdict_and_one_object_a_script() -> None:
    tasks = [task.name for task in SCRIPTS if task.name != "cluster"]  # clusters have tests
    only = dict.fromkeys(name.split()[0] for name in tasks)
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu.first_day", "--dry-run", "--only", *only],
        cwd=ROOT, env=os.environ | threads | {"PYTHONPATH": PATH},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = done.stdout.splitlines()
    found = [json.loads(line) for line in told if line.startswith("{")]
    assert [script["script"] for script in found] == tasks
    for script in found:
        assert not script["failed"]
        assert f"{script['script']}: ok, {len(script['lines'])} lines" in told
    parity = next(script for script in found if script["script"] == "real_parity")
    compared = {line["what"] for line in parity["lines"]}
    assert {"tiny mamba2_prefill, bfloat16 states", "tiny KDA delta_prefill"} <= compared


def test_without_a_gpu_it_says_what_it_can_do() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "baton.bench.gpu.first_day"], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": PATH}, timeout=240, check=False,
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

    class Faulty(TorchKernels):
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


def on_host(name: str, begin: int) -> Activity:
    return Activity(name, begin, begin + 5, on_device=False)


def on_device(name: str, begin: int, end: int) -> Activity:
    return Activity(name, begin, end, on_device=True)


def test_calls_that_wait_are_counted_while_the_device_is_watched() -> None:
    seen = [
        on_host("cudaMalloc", 50),  # before the first kernel
        on_device("step", 100, 200),
        on_host("cudaLaunchKernel", 110),
        on_host("cudaMalloc", 120),
        on_host("cudaMalloc_v3020", 130),
        on_host("cudaMallocAsync_v11020", 140),
        on_host("cudaEventQuery", 150),
        on_host("cudaStreamSynchronize", 200),
        on_device("Memcpy HtoD (Pageable -> Device)", 210, 220),
        on_device("Memcpy HtoD (Pinned -> Device)", 220, 230),
        on_device("Memcpy DtoH (Device -> Pageable)", 230, 240),
        on_device("Memcpy DtoH (Device -> Pinned)", 240, 250),
        on_host("cudaDeviceSynchronize", 251),  # the profiler's, after the last
    ]
    assert waiting_calls(seen) == Counter(
        {
            "cudaMalloc": 1,
            "cudaMalloc_v3020": 1,
            "cudaStreamSynchronize": 1,
            "Memcpy HtoD (Pageable -> Device)": 1,
            "Memcpy DtoH (Device -> Pageable)": 1,
        }
    )
    assert not waiting_calls([on_host("cudaMalloc", 120)])


def test_idle_time_lies_between_kernels_that_may_overlap() -> None:
    kernels = [
        on_device("late", 180, 200),
        on_device("long", 100, 140),
        on_device("inside", 110, 120),
        on_device("beside", 130, 150),
        on_host("cudaLaunchKernel", 0),
    ]
    assert idle_share(kernels) == pytest.approx(0.3)
    assert idle_share(kernels[:1]) == 0
    assert idle_share(kernels[-1:]) is None


def test_the_profiler_is_read_by_name_and_time() -> None:
    if torch.cuda.is_available():
        pytest.skip("there the profiler is asked for the device's activities")
    began = time.time_ns()
    seen = [each for each in profiled(torch.device("cpu"), product) if each.name == "aten::mm"]
    assert len(seen) == 1 and not seen[0].on_device
    assert seen[0].begin_ns < seen[0].end_ns <= seen[0].begin_ns + time.time_ns() - began


def product() -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)


def waits_for_the_device() -> None:
    warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=1)


def test_a_wait_is_told_with_its_line() -> None:
    with watched_waits(torch.device("cpu")) as found:
        waits_for_the_device()
        waits_for_the_device()
        warnings.warn("Synchronization debug mode is a prototype", UserWarning, stacklevel=1)
    line = waits_for_the_device.__code__.co_firstlineno + 1
    where = f"tests/bench/test_first_day.py:{line} waits_for_the_device"
    assert found.places == {where: 2}


def test_waits_of_other_threads_are_their_own() -> None:
    with watched_waits(torch.device("cpu")) as found:
        other = threading.Thread(target=waits_for_the_device)
        other.start()
        other.join()
    assert not found.places


def test_waits_for_results_are_summed() -> None:
    stream = WatchedStream(ThreadStream())
    began = time.perf_counter()
    doubled = stream.submit_prepared(lambda: 2, lambda number: 2 * number)
    assert stream.waited_s == 0
    assert doubled.result(60) == 4
    assert 0 < stream.waited_s < time.perf_counter() - began
    before = stream.waited_s
    with pytest.raises(ZeroDivisionError):
        stream.submit(lambda: 1 / 0).result(60)
    assert stream.waited_s > before
    stream.close()


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51 and percentile(values, 0.99) == 100
    assert percentile([3.0], 0.99) == 3


def test_memory_beyond_its_plan_is_a_fault_where_it_is_judged() -> None:
    receiver, sender = Pipe(duplex=False)
    told = Told("default", Part(sender, Limits(), dry=False, until=0))
    told.line("peak", 1 << 20, 2 << 20, judged=True)
    told.line("peak", 3 << 20, 2 << 20, judged=True)
    told.line("outside torch", 3 << 20, 2 << 20, "of libraries")
    told.line("graphs", -1024, None)
    lines = [receiver.recv() for _ in range(4)]
    assert [line.failed for line in lines] == [False, True, False, False]
    assert [line.share for line in lines] == [0.5, 1.5, 1.5, None]
    assert lines[2].beside == "MORE than planned of libraries"
    assert [line.value for line in lines] == ["1 MiB", "3 MiB", "3 MiB", "-1 KiB"]


def test_memory_outside_torch_is_what_the_card_has_beside_it() -> None:
    before, after = GpuBytes(9, 10, 20, 50), GpuBytes(12, 14, 30, 70)
    assert after.since(before) == GpuBytes(3, 4, 10, 20)
    assert after.outside == 40
