"""The device that workers take, and the reasons against a GPU."""

import importlib.util
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from parsed_arguments import parse

from baton.deploy.cluster.device_choice import ONE, ChosenDevice, chosen_device, unusable
from baton.deploy.cluster.gpu_demand import GpuDemand
from baton.deploy.cluster.preflight import check_device
from baton.deploy.config_from import cluster_device_from
from baton.deploy.errors import StartError
from baton.deploy.options.serve import ClusterArguments
from baton.deploy.process import gpu_driver
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig

MODEL = WeightFormat.MODEL
TWO = GpuDemand((1, 1))
TWO_RANKS = GpuDemand((2,))


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with two H100, as the driver, torch and Triton tell it."""
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(gpu_driver, "SIGNS", (driver,))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "NVIDIA H100")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return monkeypatch


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_driver, "SIGNS", (tmp_path / "version",))


def test_auto_takes_the_gpu_and_says_which(two_cards: pytest.MonkeyPatch) -> None:
    assert chosen_device("auto", MODEL, TWO) == ("cuda", "NVIDIA H100", None)
    assert chosen_device("cuda", MODEL, TWO) == ("cuda", "", None)
    assert chosen_device("cpu", MODEL, TWO) == ("cpu", "", None)
    assert chosen_device("cuda:1", MODEL, TWO) == ("cuda:1", "", None)
    device, why, _ = chosen_device("auto", WeightFormat.INT8, GpuDemand((1,)))
    assert device == "cpu" and "int8 is for the CPU" in why


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_auto_is_the_cpu_and_cuda_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked() -> bool:
        raise AssertionError("CUDA was asked: that takes a second")

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    told = "this machine has no NVIDIA driver"
    assert chosen_device("auto", MODEL, GpuDemand((1,))) == ("cpu", told, None)


@pytest.mark.parametrize(
    ("where", "name", "value", "told"),
    [
        (torch.version, "cuda", None, "is built for CPUs"),
        (torch.cuda, "is_available", lambda: False, r"older than torch's CUDA 13\.0"),
        (torch.cuda, "get_device_capability", lambda number: (7, 5), r"capability 7\.5, and kern"),
        (importlib.util, "find_spec", lambda name: None, "pip install triton"),
        (torch.cuda, "device_count", lambda: 1, "need 2 GPUs, one for each of their ranks, and 1"),
    ],
)
def test_each_reason_against_a_gpu_is_told(
    two_cards: pytest.MonkeyPatch, where: Any, name: str, value: Any, told: str
) -> None:
    assert unusable(TWO_RANKS) is None
    two_cards.setattr(where, name, value)
    device, why, _ = chosen_device("auto", MODEL, TWO_RANKS)
    assert device == "cpu"
    assert re.search(told, why)
    if name != "device_count":
        with pytest.raises(StartError, match=f"--device cuda: .*{told}"):
            check_device(EngineConfig(Path("m"), device="cuda"), here=True)
        check_device(EngineConfig(Path("m"), device="cuda"), here=False)


def test_a_gpu_that_is_not_there_is_refused_by_its_number(two_cards: pytest.MonkeyPatch) -> None:
    check_device(EngineConfig(Path("m"), device="cuda:1"), here=True)
    with pytest.raises(StartError, match="--device cuda:2: this machine has 2 CUDA devices"):
        check_device(EngineConfig(Path("m"), device="cuda:2"), here=True)


def device_for(*words: str) -> ChosenDevice:
    return cluster_device_from(parse(ClusterArguments, *words))


def test_workers_share_gpus_where_there_are_fewer(two_cards: pytest.MonkeyPatch) -> None:
    for words in ((), ("--decode", "9", "--ray-address", "auto")):
        assert device_for(*words) == ("cuda", "NVIDIA H100", None), words
    for option, value, part in (
        ("--decode", 2, 0.5),
        ("--decode-dp", 3, 0.5),
        ("--decode", 4, 0.3333),
    ):
        device, why, each = device_for(option, str(value))
        assert device == "cuda" and each == part, (option, value)
        assert re.match(r"NVIDIA H100; \d workers share a GPU and its memory", why)
    two_cards.setattr(torch.cuda, "device_count", lambda: 1)
    device, why, each = device_for("--device", "cuda")
    assert (device, each) == ("cuda", 0.5) and why.startswith("2 workers share a GPU")
    assert device_for("--decode", "15").gpus_per_worker == 0.0625


def test_ranks_have_a_gpu_each(two_cards: pytest.MonkeyPatch) -> None:
    for option in ("--tp", "--prefill-tp", "--decode-tp"):
        device, why, each = device_for(option, "2")
        assert (device, each) == ("cpu", None), option
        assert "one for each of their ranks, and 2 are here" in why, option


@pytest.mark.parametrize(
    ("each", "workers", "needed"),
    [
        (0.5, 4, 2),
        (0.5, 5, 3),
        (0.6, 2, 2),
        (0.3333, 3, 1),
        (0.0625, 16, 1),
        (1.0, 2, 2),
        (2.0, 1, 2),
    ],
)
def test_no_worker_has_parts_of_two_gpus(
    two_cards: pytest.MonkeyPatch, each: float, workers: int, needed: int
) -> None:
    demand = GpuDemand((1,) * workers, each)
    assert demand.needed == needed
    assert (unusable(demand) is None) == (needed <= 2)


def test_gpus_that_were_asked_for_and_are_not_here_are_refused(
    two_cards: pytest.MonkeyPatch,
) -> None:
    config = EngineConfig(Path("m"), device="cuda")
    told = (
        "--device cuda: 3 workers with --gpus-per-worker 1 need 3 GPUs, and 2 are here: "
        "--gpus-per-worker 0.5 divides what is here among them"
    )
    with pytest.raises(StartError, match=told):
        check_device(config, here=True, demand=GpuDemand((1, 1, 1), 1.0))
    with pytest.raises(StartError, match="workers need 3 GPUs, one for each of their ranks"):
        check_device(config, here=True, demand=GpuDemand((2, 1)))


def test_budgets_beyond_a_shared_gpu_are_refused(two_cards: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(total_memory=80 << 30)
    two_cards.setattr(torch.cuda, "get_device_properties", lambda number: card)
    shared, alone = GpuDemand((1, 1), 0.5), GpuDemand((1, 1), 1.0)
    for memory, demand in ((39 << 30, shared), (79 << 30, alone), (None, shared)):
        config = EngineConfig(Path("m"), device="cuda", memory_bytes=memory)
        check_device(config, here=True, demand=demand)
    config = EngineConfig(Path("m"), device="cuda", memory_bytes=40 << 30)
    with pytest.raises(StartError, match=r"2 workers share a GPU of 80 GiB.*most --memory-gb 39"):
        check_device(config, here=True, demand=shared)


@pytest.mark.parametrize(
    ("each", "workers", "most"), [(0.1, 2, 39), (0.25, 2, 39), (0.25, 3, 25), (0.4, 1, 79)]
)
def test_parts_that_nobody_takes_leave_their_memory_to_the_others(
    two_cards: pytest.MonkeyPatch, each: float, workers: int, most: int
) -> None:
    card = SimpleNamespace(total_memory=80 << 30)
    two_cards.setattr(torch.cuda, "get_device_properties", lambda number: card)
    demand = GpuDemand((1,) * workers, each)
    assert demand.sharers == workers and demand.needed == 1
    config = EngineConfig(Path("m"), device="cuda", memory_bytes=most << 30)
    check_device(config, here=True, demand=demand)
    config = EngineConfig(Path("m"), device="cuda", memory_bytes=most + 1 << 30)
    with pytest.raises(StartError) if workers > 1 else nullcontext():
        check_device(config, here=True, demand=demand)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_cuda_without_a_driver_ends_before_torch_is_imported(command: str, tmp_path: Path) -> None:
    if gpu_driver.has_driver():
        pytest.skip("there is a GPU")
    code = (
        "import sys\nfrom baton.cli.main import main\n"
        f"sys.argv = ['baton', {command!r}, '--model', {str(tmp_path)!r}, '--device', 'cuda']\n"
        "try: main()\n"
        "finally: assert not {'torch', 'ray'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode and "no NVIDIA driver: use --device cpu" in done.stderr, done.stderr
    assert "AssertionError" not in done.stderr


def test_weights_are_not_rounded_to_8_bits_on_a_named_gpu() -> None:
    config = EngineConfig(Path("m"), device="cuda", weight_format=WeightFormat.INT8)
    why = "--weight-format int8 is for the CPU"
    with pytest.raises(StartError, match=why):
        check_device(config, here=False)
    assert chosen_device("auto", WeightFormat.INT8, ONE) == ("cpu", why, None)


def test_fp8_weights_go_to_a_gpu(two_cards: pytest.MonkeyPatch) -> None:
    assert chosen_device("auto", WeightFormat.FP8, TWO).name == "cuda"
    check_device(EngineConfig(Path("m"), device="cuda", weight_format=WeightFormat.FP8), here=True)
