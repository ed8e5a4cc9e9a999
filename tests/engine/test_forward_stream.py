"""Tests of the stream of forwards: it keeps their order, and a forward's result carries its
error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NoReturn

import pytest
import torch
from engine.fake_cuda import FakeDevice, FakeEvent
from guarded_stream import guarded_stream

from baton.core.errors import DeviceLostError, InvariantError
from baton.engine.stream.forward_stream import (
    CudaStream,
    ForwardStream,
    InlineStream,
    ThreadStream,
)


def cuda_stream() -> ForwardStream:
    return CudaStream(torch.device("cuda"))


def guarded_cuda_stream() -> ForwardStream:
    return guarded_stream(torch.device("cuda"), nullcontext)


def broken() -> NoReturn:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("make", [InlineStream, ThreadStream, cuda_stream, guarded_cuda_stream])
def test_what_goes_wrong_is_told_by_the_result_and_later_work_is_done(
    make: Callable[[], ForwardStream], without_a_gpu: None
) -> None:
    """`submit` does not raise the error: there it would be taken for a fault of the step before."""
    stream = make()
    before, failed, after = stream.submit(lambda: 1), stream.submit(broken), stream.submit(int)
    FakeEvent.waited = 0
    assert before.result(60) == 1
    with pytest.raises(RuntimeError, match="out of memory"):
        failed.result(60)
    assert after.result(60) == 0
    if make in (cuda_stream, guarded_cuda_stream):
        assert FakeEvent.waited == 3, "what was enqueued before the fault may still run"
    stream.close()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_runs_inside_the_guard_of_a_stream(device: str, without_a_gpu: None) -> None:
    told: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        told.append("in")
        yield
        told.append("out")

    stream = guarded_stream(torch.device(device), around)
    stream.submit(lambda: told.append("work")).result(60)
    stream.close()
    assert told == ["in", "work", "out"]


def test_the_first_work_on_a_gpu_waits_for_what_the_device_was_given_before(
    without_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pools are cleared on another stream than forwards run on."""
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: told.append(f"wait for {device}"))
    stream = CudaStream(torch.device("cuda:1"))
    for step in ("first", "second"):
        stream.submit(partial(told.append, step)).result()
    assert told == ["wait for cuda:1", "first", "second"]
    stream.close()


def lose_the_device() -> int:
    """Run a step in which Triton finds that the context is lost: its error is a plain one."""
    FakeDevice.lost = True
    raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def test_a_step_that_loses_the_device_says_so(without_a_gpu: None) -> None:
    stream = cuda_stream()
    before, failed, after = stream.submit(int), stream.submit(lose_the_device), stream.submit(int)
    for each in (before, failed, after):
        with pytest.raises(DeviceLostError, match="takes no more work: CUDA error: an illegal"):
            each.result(60)
    stream.close()


def test_a_device_that_is_lost_before_the_first_step_is_the_results_error(
    without_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit` itself would lose the step that it was given."""
    stream = cuda_stream()
    monkeypatch.setattr(FakeDevice, "lost", True)
    first = stream.submit(int)
    with pytest.raises(DeviceLostError):
        first.result(60)
    stream.close()


def test_a_gpu_that_hangs_is_noticed_by_the_deadline(
    without_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = CudaStream(torch.device("cuda"))
    monkeypatch.setattr(FakeEvent, "hangs", True)
    with pytest.raises(TimeoutError, match="has not finished"):
        stream.submit(int).result(0.01)
    monkeypatch.setattr(FakeEvent, "hangs", False)
    stream.close()


def test_a_mark_that_fails_fails_the_next_work(
    without_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for what the mark would have told waits for ever otherwise: the error is one
    that ends the engine."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    stream = CudaStream(torch.device("cuda:1"))
    assert stream.submit(int).result(60) == 0
    stream.mark(broken)
    stream.close()  # the marks' thread has ended
    with pytest.raises(InvariantError, match="RuntimeError: out of memory"):
        stream.submit(int).result(60)
