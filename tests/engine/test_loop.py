"""The thread that owns an engine."""

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from engine.engines import greedy, make_engine
from engine.fake_cuda import FakeDevice
from engine.hash_model import HashModel, expected_tokens

from baton.core.errors import DeviceLostError, InvariantError, RequestError, StoppedError
from baton.core.finish import FinishReason
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.loop import EngineLoop
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.request.events import Event, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.stream.forward_stream import CudaStream

DEADLINE = 60.0


class Running:
    """A loop under test, its events in a queue."""

    def __init__(self, engine: Engine) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.failures: queue.Queue[Exception] = queue.Queue()
        self.loop = EngineLoop(engine, self._put, self.failures.put)
        self.loop.start()

    def _put(self, events: list[Event]) -> None:
        for event in events:
            self.events.put(event)

    def submit(self, spec: RequestSpec) -> None:
        self.loop.call(lambda engine: engine.submit(spec)).result(DEADLINE)

    def until_finished(self, request_id: str) -> list[Event]:
        seen: list[Event] = []
        while True:
            event = self.events.get(timeout=DEADLINE)
            seen.append(event)
            if isinstance(event, RequestFinished) and event.request_id == request_id:
                return seen

    def audit(self) -> list[str]:
        return self.loop.call(lambda engine: engine.audit()).result(DEADLINE)


@pytest.fixture
def model() -> HashModel:
    return HashModel()


@pytest.fixture
def running(model: HashModel) -> Iterator[Running]:
    it = Running(make_engine(model, max_running=2))
    yield it
    it.loop.stop(DEADLINE)


def test_requests_are_answered(running: Running) -> None:
    for name, prompt in (("a", (1, 2, 3)), ("b", (4, 5))):
        running.submit(RequestSpec(name, prompt, greedy(6)))
        events = running.until_finished(name)
        tokens = [e.token_id for e in events if isinstance(e, TokenSampled)]
        assert tokens == expected_tokens(HashModel(), prompt, 6)
    assert running.audit() == []


def test_a_call_s_error_belongs_to_its_caller(running: Running) -> None:
    with pytest.raises(RequestError, match="empty"):
        running.submit(RequestSpec("a", (), greedy()))
    running.submit(RequestSpec("a", (1,), greedy(1)))
    running.until_finished("a")


def test_a_step_that_raises_ends_its_requests_and_the_loop_goes_on(
    model: HashModel, running: Running
) -> None:
    model.fail_on = {3}
    running.submit(RequestSpec("a", (1, 2), greedy(50)))
    last = running.until_finished("a")[-1]
    assert isinstance(last, RequestFinished) and last.end.reason is FinishReason.ERROR
    assert "told to fail" in (last.error or "") and last.usage.completion_tokens == 2
    assert running.audit() == []
    running.submit(RequestSpec("b", (1, 2), greedy(3)))
    events = running.until_finished("b")
    tokens = [e.token_id for e in events if isinstance(e, TokenSampled)]
    assert tokens == expected_tokens(HashModel(), (1, 2), 3)
    assert running.failures.empty()


def test_an_idle_loop_sleeps(running: Running, model: HashModel) -> None:
    running.submit(RequestSpec("a", (1, 2), greedy(3)))
    running.until_finished("a")
    clock = running.loop.call(lambda _: time.thread_time())
    before = clock.result(DEADLINE)
    threading.Event().wait(0.3)
    used = running.loop.call(lambda _: time.thread_time()).result(DEADLINE) - before
    assert used < 0.1, f"{used} s of processor time in 0.3 s of idleness: it spins"
    assert model.forwards == 3


class Broken(HashModel):
    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool):  # type: ignore[no-untyped-def]
        raise InvariantError("the books do not balance")


def test_an_invariant_error_ends_the_loop_and_is_told() -> None:
    it = Running(make_engine(Broken()))
    it.submit(RequestSpec("a", (1,), greedy(1)))
    assert isinstance(it.failures.get(timeout=DEADLINE), InvariantError)
    it.loop.stop(DEADLINE)
    with pytest.raises(StoppedError):
        it.loop.call(lambda engine: engine.status()).result(DEADLINE)


class StepsThenLost(HashModel):
    """A model whose third step ends the device's context."""

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool):  # type: ignore[no-untyped-def]
        logits = super().forward(batch, states, pages)
        FakeDevice.lost = self.forwards >= 3
        return logits


@pytest.mark.parametrize("overlap", [True, False])
def test_a_lost_device_ends_the_loop_and_no_request(without_a_gpu: None, overlap: bool) -> None:
    """The router hears that the worker is lost, and places its requests again: a client is told
    nothing."""
    stream = CudaStream(torch.device("cuda:0"))
    it = Running(make_engine(StepsThenLost(), stream=stream, overlap=overlap))
    it.submit(RequestSpec("a", (1, 2), greedy(50)))
    error = it.failures.get(timeout=DEADLINE)
    it.loop.stop(DEADLINE)
    stream.close()
    assert isinstance(error, DeviceLostError) and "illegal memory access" in str(error)
    finished = [e for e in list(it.events.queue) if isinstance(e, RequestFinished)]
    assert not finished, "an error that a retry elsewhere would not have"


class OutOfMemory(HashModel):
    error: Exception

    def forward(self, batch: ForwardBatch, states: StatePool, pages: PagePool):  # type: ignore[no-untyped-def]
        raise self.error


@pytest.mark.parametrize("lost", [True, False])
def test_memory_that_a_step_lacks_is_that_steps_error(without_a_gpu: None, lost: bool) -> None:
    """Any other error of the accelerator ends the loop, also where the device could still be
    asked."""
    model = OutOfMemory()
    model.error = (torch.AcceleratorError if lost else torch.OutOfMemoryError)("CUDA error")
    it = Running(make_engine(model, stream=CudaStream(torch.device("cuda:0"))))
    it.submit(RequestSpec("a", (1, 2), greedy(3)))
    if lost:
        assert isinstance(it.failures.get(timeout=DEADLINE), DeviceLostError)
    else:
        last = it.until_finished("a")[-1]
        assert isinstance(last, RequestFinished) and last.end.reason is FinishReason.ERROR
        assert it.audit() == [] and it.failures.empty()
    it.loop.stop(DEADLINE)


def test_a_call_that_finds_the_books_broken_ends_the_loop_too() -> None:
    it = Running(make_engine())

    def broken(engine: Engine) -> None:
        engine.pages.ids.free(1, Owner.LIVE)

    entered, leave = threading.Event(), threading.Event()
    it.loop.call(standing(entered, leave))
    assert entered.wait(DEADLINE)
    failed, behind = it.loop.call(broken), it.loop.call(lambda engine: engine.status())
    leave.set()
    with pytest.raises(InvariantError):
        failed.result(DEADLINE)
    with pytest.raises(StoppedError):
        behind.result(DEADLINE)
    assert isinstance(it.failures.get(timeout=DEADLINE), InvariantError)
    it.loop.stop(DEADLINE)


def standing(entered: threading.Event, leave: threading.Event) -> Callable[[Engine], None]:
    """Return a call that holds the loop up until `leave` is set."""

    def wait(_: Engine) -> None:
        entered.set()
        assert leave.wait(DEADLINE)

    return wait


def test_calls_that_wait_when_the_loop_ends_are_refused() -> None:
    it = Running(make_engine())
    entered, leave = threading.Event(), threading.Event()
    it.loop.call(standing(entered, leave))
    assert entered.wait(DEADLINE)
    late = it.loop.call(lambda engine: engine.status())
    with pytest.raises(TimeoutError):
        it.loop.stop(0.01)
    leave.set()
    it.loop.stop(DEADLINE)
    with pytest.raises(StoppedError):
        late.result(DEADLINE)
