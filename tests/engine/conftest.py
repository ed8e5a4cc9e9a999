import random
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from engine.fake_cuda import FakeDevice, FakeEvent, FakeStream


@pytest.fixture
def seeded() -> Iterator[random.Random]:
    """Fresh random inputs; the seed is printed with a failing test's output."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    yield random.Random(seed)


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: FakeDevice.touch())
    monkeypatch.setattr(FakeDevice, "lost", False)
