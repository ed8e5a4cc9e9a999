"""The memory plan of a 9B model's engine beside what the engine takes of the GPU.

Each line has what was measured, what was planned for it, and the share. A plan that is too small
shows as a fault: tensors took more than planned at once, or the device ran out of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

import torch
from torch import Tensor

from baton.bench.gpu.device_engine import return_memory
from baton.bench.gpu.models import NEMOTRON_9B, DeviceWeights, write_config
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model, ready_model, with_memory
from baton.engine.engine import Engine
from baton.engine.memory.page_pool import PagePool
from baton.engine.memory.state_pool import StatePool
from baton.engine.models.family_table import configured_model
from baton.engine.replay.graphed_model import CudaCapture, GraphedModel
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import LoadFormat
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.device_overhead import DeviceOverhead
from baton.engine.sizing.readable import readable
from baton.engine.step.forward_batch import Window
from baton.engine.step.model import Model
from baton.kernels.dispatch import select

_TOLD_S = 4.0  # of the part, in which it tells what it has found
_LEAST_ROW_S = 15.0  # least time left to begin a point
_GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
_MIXED = replace(
    _GREEDY, temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, presence_penalty=0.5, seed=1
)


@dataclass(frozen=True)
class Point:
    """Options of an engine and its load. rows, chunk: None: the default. prompt: tokens of each
    request. scored: of them."""

    name: str
    rows: int | None
    chunk: int | None
    prompt: int
    scored: int
    top_logprobs: int | None


_POINTS = (
    Point("default", None, None, prompt=320, scored=0, top_logprobs=None),
    Point("64 rows, chunk 8192", 64, 8192, prompt=1024, scored=256, top_logprobs=20),
)


@dataclass(frozen=True)
class GpuBytes:
    """Bytes of a GPU at one time, of this process but for `used`. All 0 on a CPU."""

    requested: int = 0  # of tensors
    allocated: int = 0  # of the blocks that they are in: up to a megabyte of each is not theirs
    reserved: int = 0  # by torch, for tensors
    used: int = 0  # of all processes, and of libraries

    @classmethod
    def now(cls, device: torch.device) -> "GpuBytes":
        """Ask torch and the device."""
        if device.type != "cuda":
            return cls()
        free, total = torch.cuda.mem_get_info(device)
        stats = torch.cuda.memory_stats(device)
        requested = int(stats.get("requested_bytes.all.current", 0))
        allocated = torch.cuda.memory_allocated(device)
        return cls(requested, allocated, torch.cuda.memory_reserved(device), total - free)

    @property
    def outside(self) -> int:
        """Bytes that are no tensor's and not held for any."""
        return self.used - self.reserved

    def since(self, before: "GpuBytes") -> "GpuBytes":
        """Return what has come since."""
        return GpuBytes(
            self.requested - before.requested,
            self.allocated - before.allocated,
            self.reserved - before.reserved,
            self.used - before.used,
        )


class MeasuredGraphs(GraphedModel):
    """A model that notes the GPU's memory before it captures its steps, and after."""

    before = GpuBytes()
    after = GpuBytes()

    def capture(
        self,
        states: StatePool,
        pages: PagePool,
        block_tables: Tensor,
        windows: Sequence[Window] = (),
    ) -> None:
        """See `GraphedModel`."""
        device = states.storage.device
        self.before = GpuBytes.now(device)
        super().capture(states, pages, block_tables, windows)
        self.after = GpuBytes.now(device)


def memory(part: Part) -> None:
    """Compare at each point."""
    if part.device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # peaks cannot be reset before
    for point in _POINTS:
        part.row(point.name, partial(_compare, point, part), _LEAST_ROW_S)
        return_memory(part.device)


def _compare(point: Point, part: Part) -> None:
    device = part.device
    told = Told(point.name, part)
    return_memory(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    empty = GpuBytes.now(device)
    with TemporaryDirectory() as parent:
        folder = write_config(Path(parent) / "model", NEMOTRON_9B, small=part.dry)
        options = with_memory(_options(point, folder, part))
        model = _model(options, device)
        loaded = GpuBytes.now(device)
        rounded = readable(max(0, loaded.since(empty).allocated))
        told.line("weights", loaded.since(empty).requested, model.weight_bytes,
                  f"{rounded} in torch's blocks")  # fmt: skip
        began = perf_counter()
        engine = Engine(options, model, None)
    started = GpuBytes.now(device)
    part.add(f"{point.name}: start", f"{perf_counter() - began:.1f} s")
    plan, step = engine.plan, engine.plan.step
    told.line("budget", plan.budget_bytes, None, f"{plan.max_running} rows, "
              f"chunk {plan.chunked_prefill_size}, {plan.pages} pages")  # fmt: skip
    pools = plan.slots * plan.slot_layout.slot_bytes + plan.pages * plan.page_layout.page_bytes
    if isinstance(model, MeasuredGraphs):
        planned = pools + plan.tables.nbytes
        told.line("pools and tables", model.before.since(loaded).requested, planned)
        graphs = model.after.since(model.before)
        told.line("graphs, tensors", graphs.reserved, step.graphs,
                  f"of them in use {readable(max(0, graphs.allocated))}")  # fmt: skip
        overhead = DeviceOverhead(plan.max_running, len(plan.model_config.layers), 1, 1)
        told.line("graphs, outside torch", graphs.used - graphs.reserved, overhead.executables)
    for name in ("used by tensors", "held by torch", "used beside torch"):
        if name in engine.memory_report:
            part.add(f"{point.name}: by the engine, {name}", "", beside=engine.memory_report[name])
    at_start = _peak(device) - empty.allocated
    beside = f"and {readable(empty.allocated)} from before"
    told.line("peak at start", at_start, plan.tensor_bytes, beside, judged=True)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    steps, unfinished = _serve(engine, point, part)
    peak, served = _peak(device) - empty.allocated, GpuBytes.now(device)
    told.line("peak while serving", peak, plan.tensor_bytes,
              f"{steps} steps, {unfinished} requests cut off", judged=True)  # fmt: skip
    told.line("step's peak", max(peak, at_start) - started.since(empty).allocated,
              plan.step_bytes - step.graphs)  # fmt: skip
    told.line("reserved, not allocated", served.reserved - served.allocated, None,
              f"at the start {readable(max(0, started.reserved - started.allocated))}")  # fmt: skip
    told.line("outside torch", served.outside, plan.overhead_bytes,
              f"before the weights {readable(max(0, empty.outside))}")  # fmt: skip
    told.line("all of the card", served.used, _allowed(options, device))
    part.add(f"{point.name}: pinned", *_pinned(device))
    engine.close()


class Told:
    """The lines of one point."""

    def __init__(self, name: str, part: Part) -> None:
        self._name = name
        self._part = part

    def line(self, what: str, measured: int, planned: int | None, beside: str = "",
             *, judged: bool = False) -> None:  # fmt: skip
        """Tell one number beside its plan. judged: it is a fault if it is larger."""
        on_cpu = self._part.dry
        more = planned is not None and measured > planned
        self._part.add(
            f"{self._name}: {what}",
            "not asked" if on_cpu else _signed(measured),
            "" if planned is None else readable(planned),
            measured / planned if planned and not on_cpu else None,
            f"MORE than planned {beside}".rstrip() if more else beside,
            failed=judged and more,
        )


def _signed(nbytes: int) -> str:
    return readable(nbytes) if nbytes >= 0 else f"-{readable(-nbytes)}"


def _options(point: Point, folder: Path, part: Part) -> EngineConfig:
    options = EngineConfig(
        model=folder,
        dtype=torch.float32 if part.dry else torch.bfloat16,
        device=str(part.device),
        load_format=LoadFormat.DUMMY,
        memory_fraction=0.9,
        max_running=point.rows,
        chunked_prefill_size=point.chunk,
    )
    if not part.dry:
        return options
    return replace(
        options, memory_bytes=1 << 28, memory_fraction=None, max_running=4,
        chunked_prefill_size=64, max_model_len=256, page_size=16,
    )  # fmt: skip


def _model(options: EngineConfig, device: torch.device) -> Model:
    """Return a model of random weights, made on the device; see `loader.ready_model`."""
    config = configured_model(options)
    source = DeviceWeights(device, options.dtype)
    if device.type != "cuda":
        return ready_model(config, source, options)
    kernels = select(device, config.dtype, options.kernels)
    built = build_model(config, source, device, kernels=kernels)
    return MeasuredGraphs(built, options.most_running, CudaCapture())


def _serve(engine: Engine, point: Point, part: Part) -> tuple[int, int]:
    """Serve as many requests as run at once; return the steps, and the requests that time has cut
    off."""
    rng = Random(0)
    length = min(point.prompt, engine.plan.max_model_len - _GREEDY.max_tokens)
    rows = engine.plan.max_running
    for number, kind in enumerate(islice(cycle((_GREEDY, _MIXED)), rows)):
        sampling = replace(kind, logprobs=point.top_logprobs)
        if point.scored:
            start = max(0, length - point.scored)
            sampling = replace(sampling, prompt_logprobs_start=start, prompt_logprobs=20)
        vocab = engine.plan.model_config.vocab_size
        prompt = tuple(rng.randrange(3, vocab) for _ in range(length))
        engine.submit(RequestSpec(f"memory-{number}", prompt, sampling))
    steps = 0
    while engine.has_work and part.left_s > _TOLD_S:
        engine.step()
        steps += 1
    status = engine.status()
    return steps, status.running + status.waiting


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _allowed(options: EngineConfig, device: torch.device) -> int | None:
    """Return the bytes of the card that the options let the engine take."""
    if device.type != "cuda":
        return None
    _, total = torch.cuda.mem_get_info(device)
    return int(total * options.fraction)


def _pinned(device: torch.device) -> tuple[str, str, float | None, str]:
    """Return value, limit, share and what stands beside: bytes of the host that torch has pinned;
    of a torch that names them otherwise, all that it says of bytes."""
    if device.type != "cuda":
        return "not asked", "", None, ""
    stats: dict[str, object] = torch.cuda.host_memory_stats()
    current = stats.get("allocated_bytes.current")
    peak = stats.get("allocated_bytes.peak")
    if isinstance(current, int) and isinstance(peak, int):
        return readable(current), "", None, f"at most {readable(peak)}"
    of_bytes = {name: value for name, value in stats.items() if "bytes" in name}
    return "not known", "", None, str(of_bytes)[:200]
