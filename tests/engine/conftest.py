from contextlib import nullcontext

import pytest
import torch
from engine.fake_cuda import FakeDevice, FakeEvent, FakeStream


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: FakeDevice.touch())
    monkeypatch.setattr(FakeDevice, "lost", False)
