"""The CUDA device of each thread that touches a GPU."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine.fake_cuda import FakeEvent, FakeStream

from baton.core.errors import ConfigError
from baton.core.supervised import ProcessSupervisor
from baton.engine.assembly import loader
from baton.engine.assembly.kept_form import kept_form
from baton.engine.layout.device import device_of, use_device
from baton.engine.loading.weights import DummyWeights
from baton.engine.loop import EngineLoop
from baton.engine.models.tally import Tally
from baton.engine.replay.graphed_model import GraphedModel
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig
from baton.engine.settings.quantisation import UNQUANTISED
from baton.engine.stream.forward_stream import CudaStream
from baton.kernels.kernel_choice import KernelChoice
from baton.transfer.channels.poller import Poller
from baton.worker import runtime

DEVICE = torch.device("cuda:1")
DEADLINE_S = 60.0


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, torch.device]]:
    """The device that each thread has set, by the thread's name. The driver is replaced; torch's
    own checks of what it is given are not."""
    found: dict[str, torch.device] = {}

    def set_device(number: int) -> None:
        found[threading.current_thread().name] = torch.device("cuda", number)

    # torch's CPU build lacks it.
    monkeypatch.setattr(torch._C, "_cuda_setDevice", set_device, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    yield found


def test_a_cpu_has_no_device_to_set(devices: dict[str, torch.device]) -> None:
    use_device(torch.device("cpu"))
    assert not devices


@pytest.mark.parametrize(("name", "number"), [("cuda", 0), ("cuda:0", 0), ("cuda:3", 3)])
def test_every_spelling_of_a_gpu_is_set(
    name: str, number: int, devices: dict[str, torch.device]
) -> None:
    use_device(torch.device(name))
    use_device(device_of(name))
    assert list(devices.values()) == [torch.device("cuda", number)]
    assert device_of(name) == torch.device("cuda", number)


def test_the_engines_thread_sets_the_device_that_the_option_names(
    devices: dict[str, torch.device],
) -> None:
    config = SimpleNamespace(device="cuda")
    engine: Any = SimpleNamespace(config=config, has_work=False, followers=None, tier=None)
    loop = EngineLoop(engine, lambda events: None, lambda error: None)
    loop.start()
    loop.call(lambda _: None).result(DEADLINE_S)
    loop.stop(DEADLINE_S)
    assert devices == {"engine": torch.device("cuda", 0)}


def test_the_engines_thread_sets_its_device(devices: dict[str, torch.device]) -> None:
    config = SimpleNamespace(device=str(DEVICE))
    engine: Any = SimpleNamespace(config=config, has_work=False, followers=None, tier=None)
    loop = EngineLoop(engine, lambda events: None, lambda error: None)
    loop.start()
    loop.call(lambda _: None).result(DEADLINE_S)
    loop.stop(DEADLINE_S)
    assert devices == {"engine": DEVICE}


def test_the_thread_that_waits_for_marks_sets_its_device(devices: dict[str, torch.device]) -> None:
    stream, told = CudaStream(DEVICE), threading.Event()
    stream.mark(told.set)
    assert told.wait(DEADLINE_S)
    assert devices == {"marks_0": DEVICE}
    stream.close()


def test_the_thread_that_polls_channels_sets_its_device(devices: dict[str, torch.device]) -> None:
    poller = Poller("transfers", ProcessSupervisor(), lambda: use_device(DEVICE))
    poller.stop()
    assert devices == {"transfers": DEVICE}


def test_threads_beside_the_workers_loop_set_its_device(devices: dict[str, torch.device]) -> None:
    async def aside() -> str:
        runtime._use_device(DEVICE)
        return await asyncio.to_thread(lambda: threading.current_thread().name)

    name = asyncio.run(aside())
    assert devices == {threading.current_thread().name: DEVICE, name: DEVICE}


@pytest.mark.parametrize("graphs", [True, False])
def test_decode_steps_are_captured_unless_the_options_say_no(
    graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is on a GPU that is not there, and so is the memory of its graphs."""
    built = SimpleNamespace(config=None, tally=Tally())
    monkeypatch.setattr(loader, "build_model", lambda *_: built)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    config = EngineConfig(Path("."), device="cuda", graphs=graphs)
    model: Any = SimpleNamespace(dtype=torch.bfloat16, quantisation=UNQUANTISED)
    made = loader.ready_model(model, DummyWeights(), config)
    assert isinstance(made, GraphedModel) is graphs


def test_weights_are_not_rounded_to_8_bits_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "configured_model", lambda *_: None)
    config = EngineConfig(Path("."), device="cuda:1", weight_format=WeightFormat.INT8)
    with pytest.raises(ConfigError, match="int8 is for the CPU; got device cuda:1"):
        loader.load_model(config)


@pytest.mark.parametrize("capability, kept", [((9, 0), "fp8"), ((8, 9), "fp8"), ((8, 6), "model")])
def test_fp8_stays_on_gpus_that_convert_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], kept: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    asked = (torch.device("cuda"), torch.bfloat16, KernelChoice.AUTO)
    assert kept_form(WeightFormat.AUTO, *asked) == kept
    if kept == "model":
        with pytest.raises(ConfigError, match=r"a GPU of compute capability 8\.9 or above"):
            kept_form(WeightFormat.FP8, *asked)
