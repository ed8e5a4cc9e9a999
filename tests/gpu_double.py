"""A GPU that is not there: CPU memory that says that it is a GPU's, for whole workers in a test.

Tensors on it are `OnGpu`. Those that are made on it come from a TorchFunctionMode, which belongs to
a thread: it is entered where the thread sets its device, so a thread that touches the GPU without
`use_device` fails. Work is done when the call that enqueues it returns: streams and events order
nothing here, and a captured graph runs the captured function again.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any, TypeGuard

import pytest
import torch
from on_gpu import GPU, OnGpu
from torch import Tensor
from torch.overrides import TorchFunctionMode

MEMORY_BYTES = 8 << 30
_READS = {"item", "tolist", "nonzero", "argwhere", "__bool__", "__int__", "__float__", "__index__"}
_READS |= {"masked_select", "unique", "equal", "allclose", "is_nonzero"}
_INDEXED = {"__getitem__", "__setitem__"}


@dataclass
class Traffic:
    """Record of what went between host and GPU: the thread and the function of each."""

    reads: list[str] = field(default_factory=list)  # for which the host waits
    pageable: list[str] = field(default_factory=list)  # copies from memory that is not pinned
    threads: set[str] = field(default_factory=set)  # that have set their device
    replays: int = 0

    def clear(self) -> None:
        for known in (self.reads, self.pageable):
            known.clear()
        self.replays = 0

    def read(self, name: str) -> None:
        self.reads.append(f"{threading.current_thread().name}: {name}")

    def paged(self, name: str) -> None:
        self.pageable.append(f"{threading.current_thread().name}: {name}")


class GpuMode(TorchFunctionMode):
    """Makes tensors on the double, moves them, and refuses what a GPU refuses."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, kwargs = func.__name__, dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        if name == "pin_memory":
            return _pinned(args[0].clone())
        if name in ("to", "cuda", "cpu"):
            return self._moved(func, name, args, kwargs)
        if name == "copy_":
            return self._copied(func, args, kwargs)
        made_here = _is_gpu(kwargs.get("device"))
        if made_here:
            kwargs["device"] = "cpu"
        elif not made_here and name not in _INDEXED:
            _check_one_device(name, args, kwargs)
        if name in _READS and any(isinstance(each, OnGpu) for each in args):
            self._traffic.read(name)
        if name in _INDEXED and isinstance(args[0], OnGpu):
            self._index(name, args)
        result = func(*args, **kwargs)
        if made_here:
            if name in ("tensor", "as_tensor", "from_numpy", "asarray"):
                self._traffic.paged(name)
            return result.as_subclass(OnGpu)
        return _pinned(result) if pinned else result

    def _moved(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Copy a tensor to the GPU or from it, or change its dtype where it lies."""
        source = args[0]
        named = [each for each in (*args[1:], *kwargs.values()) if _is_device(each)]
        like = [each for each in args[1:] if isinstance(each, Tensor)]
        here = isinstance(source, OnGpu)
        there = here
        if name != "to":
            there = name == "cuda"
        elif named or like:
            there = _is_gpu(named[0]) if named else isinstance(like[0], OnGpu)
        plain = source.as_subclass(Tensor) if here else source
        rest: list[Any] = [_on_host(value) for value in args[1:]]
        kwargs = {key: _on_host(value) for key, value in kwargs.items()}
        moved: Tensor = Tensor.to(plain, *rest, **kwargs) if name == "to" else plain
        if here is there:
            return moved.as_subclass(OnGpu) if here else moved
        if there and not _is_pinned(plain):
            self._traffic.paged(name)
        if here:
            self._traffic.read(name)
        copy = moved.clone()
        return copy.as_subclass(OnGpu) if there else copy

    def _copied(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        into, source = args[:2]
        if isinstance(into, OnGpu) and not isinstance(source, OnGpu):
            if not _is_pinned(source):
                self._traffic.paged("copy_")
        elif isinstance(source, OnGpu) and not isinstance(into, OnGpu):
            if not (_is_pinned(into) and kwargs.get("non_blocking")):
                self._traffic.read("copy_")
        plain = [each.as_subclass(Tensor) for each in (into, source)]
        Tensor.copy_(*plain, *args[2:], **kwargs)
        return into

    def _index(self, name: str, args: tuple[Any, ...]) -> None:
        """Count what an index or a value of the host costs, and a mask whose size is read."""
        indices = args[1] if isinstance(args[1], tuple) else (args[1],)
        filled = name == "__setitem__" and not isinstance(args[2], Tensor)
        for index in (each for each in indices if isinstance(each, Tensor)):
            if isinstance(index, OnGpu) and index.dtype is torch.bool and not filled:
                self._traffic.read(f"{name} of a mask")
        given = (each for each in (*indices, *args[2:]) if isinstance(each, Tensor) and each.dim())
        if not all(isinstance(each, OnGpu) for each in given):
            self._traffic.paged(name)


_PINNED = "pinned_by_the_double"
_REGISTERED: list[range] = []  # addresses


def _pinned(tensor: Tensor) -> Tensor:
    setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    if any(tensor.data_ptr() in each for each in _REGISTERED):
        return True
    return _PINNED in vars(tensor.untyped_storage()) or not tensor.dim()


def _register(address: int, nbytes: int, flags: int) -> int:
    """Do as CUDA's `cudaHostRegister`."""
    _REGISTERED.append(range(address, address + nbytes))
    return flags


def _on_host(value: object) -> object:
    """Return an argument as it is called on the memory that holds the double's tensors."""
    if isinstance(value, OnGpu):
        return value.as_subclass(Tensor)
    return "cpu" if _is_gpu(value) else value


def _is_device(value: object) -> TypeGuard[torch.device | str]:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "cuda"))


def _is_gpu(value: object) -> bool:
    return _is_device(value) and torch.device(value).type == "cuda"


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _check_one_device(name: str, args: Any, kwargs: Any) -> None:
    """Raise RuntimeError where a GPU would: for tensors here and there, unless they are scalars."""
    there = {isinstance(each, OnGpu) for each in (*_tensors(args), *_tensors(kwargs)) if each.dim()}
    if len(there) > 1:
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device")


class EventDouble:
    """An event that the device has passed."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: object, /) -> float:
        return 1.0


class StreamDouble:
    def __init__(self, device: torch.device) -> None:
        assert device == GPU

    def synchronize(self) -> None: ...


class CurrentStream(StreamDouble):
    """The stream of a thread that has chosen none, on which a wait stops the thread."""

    def __init__(self, device: torch.device, traffic: Traffic) -> None:
        super().__init__(device)
        self._traffic = traffic

    def synchronize(self) -> None:
        self._traffic.read("synchronize")


class GraphDouble:
    """A captured function, which a replay runs again, into the result that the capture gave."""

    traffic: Traffic

    def __init__(self) -> None:
        self._forward: Callable[[], Tensor] | None = None
        self._result: Tensor | None = None

    def replay(self) -> None:
        assert self._forward is not None and self._result is not None, "nothing was captured"
        GraphDouble.traffic.replays += 1
        self._result.copy_(self._forward())

    def keep(self, forward: Callable[[], Tensor], result: Tensor) -> None:
        self._forward, self._result = forward, result


class CaptureDouble:
    """The context of a capture. A GPU knows what was launched inside; this looks at the variables
    of the function that captures."""

    def __init__(self, graph: GraphDouble, pool: object, capture_error_mode: str) -> None:
        self._graph = graph
        self._frame: FrameType | None = None

    def __enter__(self) -> None:
        self._frame = sys._getframe(1)

    def __exit__(self, *error: object) -> None:
        assert self._frame is not None
        known, self._frame = self._frame.f_locals, None
        if "result" in known:
            self._graph.keep(known["forward"], known["result"])


@contextmanager
def gpu_double(patches: pytest.MonkeyPatch) -> Iterator[Traffic]:
    """Give this process one GPU. The traffic is counted on every thread that has set its device."""
    traffic = Traffic()
    GraphDouble.traffic = traffic
    entered = threading.local()

    def set_device(number: int) -> None:
        assert number == 0
        traffic.threads.add(threading.current_thread().name)
        if not vars(entered):
            entered.mode = GpuMode(traffic)
            entered.mode.__enter__()

    @contextmanager
    def on_stream(stream: StreamDouble) -> Iterator[None]:
        yield

    properties = SimpleNamespace(
        multi_processor_count=132, total_memory=MEMORY_BYTES, uuid="double", name="double"
    )
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "mem_get_info": lambda device=None: (MEMORY_BYTES - (1 << 28), MEMORY_BYTES),
        "get_device_properties": lambda device: properties,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "double",
        "max_memory_allocated": lambda device=None: 1 << 20,
        "memory_reserved": lambda device=None: 1 << 20,
        "synchronize": lambda device=None: None,
        "Stream": StreamDouble,
        "Event": EventDouble,
        "stream": on_stream,
        "current_stream": lambda device: CurrentStream(device, traffic),
        "CUDAGraph": GraphDouble,
        "graph": CaptureDouble,
        "graph_pool_handle": lambda: (0, 0),
        "cudart": lambda: SimpleNamespace(cudaHostRegister=_register),
        "check_error": lambda error: None,
    }.items():
        patches.setattr(torch.cuda, name, value)
    patches.setattr(torch._C, "_cuda_setDevice", set_device, raising=False)
    patches.setattr(OnGpu, "is_cuda", property(lambda tensor: True), raising=False)
    try:
        yield traffic
    finally:
        _REGISTERED.clear()
        if vars(entered):
            entered.mode.__exit__(None, None, None)
