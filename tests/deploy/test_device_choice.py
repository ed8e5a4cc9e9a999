"""The device that workers take, and the reasons against a GPU."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.deploy.cluster.device_choice import chosen_device, unusable
from baton.deploy.cluster.preflight import check_device
from baton.deploy.config_from import cluster_device_from
from baton.deploy.errors import StartError
from baton.deploy.process import gpu_driver
from baton.engine.settings.choices import WeightFormat
from baton.engine.settings.config import EngineConfig

MODEL = WeightFormat.MODEL


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
    assert chosen_device("auto", MODEL, 2) == ("cuda", "NVIDIA H100")
    assert chosen_device("cpu", MODEL, 2) == ("cpu", "")
    assert chosen_device("cuda:1", MODEL, 2) == ("cuda:1", "")
    device, why = chosen_device("auto", WeightFormat.INT8, 1)
    assert device == "cpu" and "int8 is for the CPU" in why


@pytest.mark.usefixtures("no_driver")
def test_without_a_driver_auto_is_the_cpu_and_cuda_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def asked() -> bool:
        raise AssertionError("CUDA was asked: that takes a second")

    monkeypatch.setattr(torch.cuda, "is_available", asked)
    assert chosen_device("auto", MODEL, 1) == ("cpu", "this machine has no NVIDIA driver")


@pytest.mark.parametrize(
    ("where", "name", "value", "told"),
    [
        (torch.version, "cuda", None, "is built for CPUs"),
        (torch.cuda, "is_available", lambda: False, r"older than torch's CUDA 13\.0"),
        (torch.cuda, "get_device_capability", lambda number: (7, 5), r"capability 7\.5, and kern"),
        (importlib.util, "find_spec", lambda name: None, "pip install triton"),
        (torch.cuda, "device_count", lambda: 1, "--gpus-per-worker with a part of 1 shares one"),
    ],
)
def test_each_reason_against_a_gpu_is_told(
    two_cards: pytest.MonkeyPatch, where: Any, name: str, value: Any, told: str
) -> None:
    assert unusable(2) is None
    two_cards.setattr(where, name, value)
    device, why = chosen_device("auto", MODEL, 2)
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


def test_auto_counts_the_gpus_of_all_workers(two_cards: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "device": "auto", "weight_format": "model", "prefill": 1, "decode": 1, "decode_dp": 1,
        "tp": 1, "prefill_tp": None, "decode_tp": None, "gpus_per_worker": None,
        "ray_address": None,
    }  # fmt: skip
    assert cluster_device_from(given)[0] == "cuda"
    for more in ({"decode": 2}, {"decode_dp": 2}, {"tp": 2}, {"prefill_tp": 2}):
        device, why = cluster_device_from(given | more)
        assert device == "cpu" and "GPUs, and 2 are here" in why, more
    assert cluster_device_from(given | {"decode": 3, "gpus_per_worker": 0.5})[0] == "cuda"
    assert cluster_device_from(given | {"decode": 9, "ray_address": "auto"})[0] == "cuda"


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


def test_8_bit_weights_are_refused_on_a_named_gpu() -> None:
    config = EngineConfig(Path("m"), device="cuda", weight_format=WeightFormat.INT8)
    with pytest.raises(StartError, match="--weight-format int8 is for the CPU"):
        check_device(config, here=False)
