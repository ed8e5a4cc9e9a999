"""Errors of a device: one that is lost, one without memory for a step, and one that hangs.

Each has a process of its own, because the first ends CUDA in it. On a CPU the model raises what
CUDA would.
"""

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch

from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.faulty_model import FaultyModel
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.models import FEW_LAYERS, DeviceWeights, write_config
from baton.bench.gpu.parts import Part
from baton.core.errors import DeviceLostError, InvariantError, StoppedError
from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model
from baton.engine.engine import Engine
from baton.engine.loop import EngineLoop
from baton.engine.models.family_table import configured_model
from baton.engine.request.events import Event, RequestFinished, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.step.forward_batch import ForwardBatch
from baton.engine.stream.forward_stream import ForwardStream, Pending, forward_stream
from baton.kernels.dispatch import select

T = TypeVar("T")
P = TypeVar("P")

_WAIT_S = 20.0  # for anything that has to happen
_DEADLINE_S = 0.5  # of a step, where one hangs
_HANGS_CYCLES = 8_000_000_000  # some 4 s
_MEMORY = 12 << 30  # bytes of the engine whose step lacks some
_SPARE = 32 << 20  # bytes that steps of few tokens find, and that of a long prompt does not


def errors(part: Part) -> None:
    """Bring about each error, a line each."""
    rows = {
        "a lost device": lost_device,
        "a step without memory": no_memory,
        "a step that hangs": hanging_step,
    }
    side_by_side(part, {what: partial(_tell, what, row, part) for what, row in rows.items()})


def _tell(what: str, row: Callable[[torch.device], tuple[str, str]], part: Part) -> None:
    fault, told = row(part.device)
    part.add(what, fault or "as it should", beside=told, failed=bool(fault))


class ShortDeadline:
    """A stream whose results are waited for `most_s` at most, once that is set."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream = stream
        self.most_s: float | None = None

    def submit(self, work: Callable[[], T]) -> Pending[T]:
        return _Impatient(self._stream.submit(work), self)

    def submit_prepared(self, prepare: Callable[[], P], work: Callable[[P], T]) -> Pending[T]:
        """See `ForwardStream`."""
        return _Impatient(self._stream.submit_prepared(prepare, work), self)

    def mark(self, then: Callable[[], None]) -> None:
        """See `ForwardStream`."""
        self._stream.mark(then)

    def close(self) -> None:
        """See `ForwardStream`."""
        self._stream.close()


class _Impatient(Pending[T]):
    def __init__(self, pending: Pending[T], stream: ShortDeadline) -> None:
        self._pending = pending
        self._stream = stream

    def result(self, timeout: float | None = None) -> T:
        most = self._stream.most_s
        return self._pending.result(timeout if most is None else most)


class FaultyEngine:
    """An engine of a `FaultyModel`, stepped by its loop, and what the loop tells."""

    def __init__(self, device: torch.device, small: bool) -> None:
        """small: a small model in float32; a CPU has no other."""
        small = small or device.type == "cpu"
        with TemporaryDirectory() as folder:
            path = write_config(Path(folder) / "model", FEW_LAYERS[0], small)
            options = options_of(path, device, 4, small)
            if not small:
                options = replace(options, memory_bytes=_MEMORY)
            model = configured_model(options)
            kernels = select(device, model.dtype, options.kernels)
            source = DeviceWeights(device, model.dtype)
            built = build_model(model, source, device, kernels=kernels)
            self.model = FaultyModel(built)
            self.stream = ShortDeadline(forward_stream(device, overlap=True))
            self.engine = Engine(options, self.model, None, self.stream)
        self.longest = self.engine.plan.max_model_len - 60
        self.ends: dict[str, RequestFinished] = {}
        self._tokens = random.Random(0)
        self._told: queue.Queue[Event | Exception] = queue.Queue()
        self.loop = EngineLoop(self.engine, self._put, self._told.put)
        self.loop.start()

    def _put(self, events: list[Event]) -> None:
        for event in events:
            self._told.put(event)

    def submit(self, prompt: int, tokens: int, *names: str) -> None:
        """Submit requests together, each of a random prompt of so many tokens."""
        vocab = self.engine.plan.model_config.vocab_size
        greedy = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        specs = [
            RequestSpec(
                name, tuple(self._tokens.randrange(3, vocab) for _ in range(prompt)), greedy
            )
            for name in names
        ]

        def enter(engine: Engine) -> None:
            for spec in specs:
                engine.submit(spec)

        self.loop.call(enter).result(_WAIT_S)

    def until(self, kind: type[TokenSampled] | type[RequestFinished], name: str) -> None:
        """Wait for an event of a request. Raises queue.Empty, and what has ended the loop."""
        while True:
            told = self._next()
            if isinstance(told, Exception):
                raise told
            if isinstance(told, kind) and told.request_id == name:
                return

    def outcome(self) -> Exception | RequestFinished:
        """Wait for what ends the loop, or a request. Raises queue.Empty."""
        while True:
            told = self._next()
            if isinstance(told, Exception | RequestFinished):
                return told

    def _next(self) -> Event | Exception:
        told = self._told.get(timeout=_WAIT_S)
        if isinstance(told, RequestFinished):
            self.ends[told.request_id] = told
        return told

    def close(self) -> None:
        """End the loop and the engine. Raises what has ended the loop, if that was not heard."""
        self.loop.stop(_WAIT_S)
        self.engine.close()
        while not self._told.empty():
            told = self._next()
            if isinstance(told, Exception):
                raise told


def lost_device(device: torch.device) -> tuple[str, str]:
    """Let a kernel's assertion fail. The loop must end without an end of any request: then the
    router places them again. Return what was wrong, or nothing, and what came."""
    served = FaultyEngine(device, small=True)

    def asserts(batch: ForwardBatch) -> None:
        if batch.decode_rows < 3:
            return
        served.model.fault = None
        if device.type == "cpu":
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        torch._assert_async(torch.zeros((), device=device))

    served.model.fault = asserts
    served.submit(20, 100, "one", "two", "three")
    error = served.outcome()
    served.close()
    refused = _refusal(served.loop)
    told = f"{type(error).__name__}: {error}".splitlines()[0][:90]
    if served.ends:
        return "A REQUEST ENDED", told
    if not isinstance(error, DeviceLostError):
        return "ANOTHER ERROR", told
    return ("" if refused else "TAKES MORE REQUESTS"), told


def _refusal(loop: EngineLoop) -> bool:
    """Return True if the loop refuses calls in a way that lets a router ask another worker."""
    try:
        loop.call(lambda engine: engine.status()).result(_WAIT_S)
    except StoppedError as error:
        return error.status.replaceable
    return False


def no_memory(device: torch.device) -> tuple[str, str]:
    """Take away the memory that a long prompt needs. Its step's requests must end, and no others,
    and afterwards all memory must be free again. Return as `lost_device` does."""
    served = FaultyEngine(device, small=False)
    served.submit(20, 150, "beside")
    served.until(TokenSampled, "beside")
    before = served.loop.call(lambda _: _leave_little(device)).result(_WAIT_S)

    def lacks(batch: ForwardBatch) -> None:
        if device.type == "cpu" and batch.tokens > served.longest // 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    served.model.fault = lacks
    served.submit(served.longest, 40, "long")
    served.submit(20, 40, "behind")
    served.until(RequestFinished, "long")
    served.loop.call(lambda _: _leave_all(device)).result(_WAIT_S)
    served.model.fault = None
    served.submit(served.longest, 40, "after")
    for name in ("beside", "behind", "after"):
        if name not in served.ends:
            served.until(RequestFinished, name)
    findings = served.loop.call(lambda engine: engine.audit()).result(_WAIT_S)
    kept = served.loop.call(lambda _: _held(device)).result(_WAIT_S) - before
    served.close()
    return _fault_of_ends(served, findings, kept), (
        f"{(served.ends['long'].error or '')[:60]}; beside it: {served.ends['beside'].end.reason}; "
        f"{kept >> 20} MiB kept"
    )


def _fault_of_ends(served: FaultyEngine, findings: list[str], kept: int) -> str:
    long = served.ends["long"]
    if long.end.reason is not FinishReason.ERROR or "OutOfMemory" not in (long.error or ""):
        return f"THE LONG PROMPT ENDED BY {long.end.reason}"
    for name in ("behind", "after"):
        if served.ends[name].end.reason is not FinishReason.LENGTH:
            return f"THE ONE {name} ENDED BY {served.ends[name].end.reason}"
    if findings:
        return f"AUDIT: {findings[0]}"
    return "MEMORY IS KEPT" if kept > _SPARE else ""


def _leave_little(device: torch.device) -> int:
    """Take all memory but a little from this process, and return the bytes that it holds."""
    if device.type == "cpu":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + _SPARE) / total)
    return torch.cuda.memory_allocated()


def _leave_all(device: torch.device) -> None:
    if device.type != "cpu":
        torch.cuda.set_per_process_memory_fraction(1.0)


def _held(device: torch.device) -> int:
    if device.type == "cpu":
        return 0
    torch.cuda.synchronize(device)
    return torch.cuda.memory_allocated()


def hanging_step(device: torch.device) -> tuple[str, str]:
    """Let a step take longer than its deadline, which is made short. The loop must end before the
    step does, without an end of any request. Return as `lost_device` does."""
    served = FaultyEngine(device, small=True)
    served.submit(20, 20, "before")
    served.until(RequestFinished, "before")
    del served.ends["before"]
    over = threading.Event()

    def hangs(batch: ForwardBatch) -> None:
        if batch.decode_rows < batch.rows:
            return
        served.model.fault = None
        if device.type == "cpu":
            over.wait(_WAIT_S)
        else:
            torch.cuda._sleep(_HANGS_CYCLES)  # type: ignore[no-untyped-call]

    served.stream.most_s = _DEADLINE_S
    served.model.fault = hangs
    served.submit(20, 100, "hanging")
    began = time.monotonic()
    error = served.outcome()
    noticed = time.monotonic() - began
    over.set()
    served.close()
    ended = time.monotonic() - began
    told = f"noticed after {noticed:.1f} s, over after {ended:.1f} s: {type(error).__name__}"
    if served.ends:
        return "A REQUEST ENDED", told
    return ("" if isinstance(error, InvariantError) else "ANOTHER ERROR"), told
