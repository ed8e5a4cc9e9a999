"""A thread that uses the device beside an engine, as transfers and other engines do."""

import random
import threading
from types import TracebackType

import torch

from baton.core.supervised import child_thread
from baton.engine.layout.device import use_device

_MOST = 1 << 22  # numbers of a tensor
_REST_S = 1e-3  # on a CPU, between two rounds
_EMPTIED = 40  # rounds between two at which torch gives free memory back to the driver


class BusyThread:
    """A context in which a thread allocates, writes, reads back and frees, on its own stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ending = threading.Event()
        self.rounds = 0
        self.fault = ""

    def __enter__(self) -> "BusyThread":
        self._thread = child_thread(self._run, "busy", self._failed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        self._thread.join(30.0)

    def _failed(self, error: Exception) -> None:
        self.fault = f"{type(error).__name__}: {error}".splitlines()[0]

    def _run(self) -> None:
        use_device(self._device)
        sizes = random.Random(0)
        if self._device.type != "cuda":
            while not self._ending.is_set():
                self._round(sizes, _MOST >> 8)
                self._ending.wait(_REST_S)
            return
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not self._ending.is_set():
                self._round(sizes, _MOST)
                if self.rounds % _EMPTIED == 0:
                    torch.cuda.empty_cache()

    def _round(self, sizes: random.Random, most: int) -> None:
        """Write a tensor of one number, and find nothing else in it."""
        count = sizes.randrange(1, most)
        values = torch.full((count,), self.rounds, dtype=torch.int32, device=self._device)
        found = values.cpu()
        if not torch.equal(found, torch.full_like(found, self.rounds)):
            self.fault = f"{count} numbers changed in round {self.rounds}"
        self.rounds += 1
