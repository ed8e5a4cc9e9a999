"""The copy of a plan that stands alone."""

from collections.abc import Iterator

import pytest
import torch
from on_gpu import GPU
from torch import Tensor

from baton.kernels.host_plan import HostPlan


class Copies:
    """The copies to a device, which is not there: whether each came from pinned memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pinned: list[bool] = []
        pinned: set[int] = set()

        def pin(tensor: Tensor) -> Tensor:
            copied = tensor.clone()
            pinned.add(copied.data_ptr())
            return copied

        def to(tensor: Tensor, device: torch.device, non_blocking: bool = False) -> Tensor:
            self.pinned.append(tensor.data_ptr() in pinned)
            return tensor

        monkeypatch.setattr(Tensor, "pin_memory", pin)
        monkeypatch.setattr(Tensor, "to", to)


def lists(tensors: Iterator[Tensor]) -> list[list[int]]:
    return [tensor.tolist() for tensor in tensors]


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_a_plan_goes_to_a_gpu_from_pinned_memory(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step with prompts makes one on every rank but the first."""
    copies = Copies(monkeypatch)
    assert HostPlan(((1, 2, 3), (), (4,)), lists).on(device) == [[1, 2, 3], [], [4]]
    assert copies.pinned == [device.type == "cuda"]
