"""Streams and events of a GPU that is not there: their work is done when the call returns."""

import torch


class FakeDevice:
    """The state of the GPU that the fakes below stand for."""

    lost = False

    @classmethod
    def touch(cls) -> None:
        """Raise what every call of CUDA raises when its context is lost."""
        if cls.lost:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class FakeEvent:
    waited = 0
    hangs = False

    def __init__(self, blocking: bool = False) -> None: ...

    def record(self, stream: object) -> None:
        FakeDevice.touch()

    def synchronize(self) -> None:
        FakeDevice.touch()

    def query(self) -> bool:
        FakeDevice.touch()
        FakeEvent.waited += 1
        return not FakeEvent.hangs


class FakeStream:
    def __init__(self, device: torch.device) -> None: ...

    def synchronize(self) -> None:
        FakeDevice.touch()
