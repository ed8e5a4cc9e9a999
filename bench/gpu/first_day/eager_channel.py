"""A stand-in for a channel: it reads layers when it is told of them, and writes tickets at once.

It copies on a stream of its own, which waits for no other, as the cards of a network do.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from baton.engine.engine import Engine
from baton.engine.layout.layout import Component
from baton.engine.request.request import Parked, Reservation
from baton.engine.step.layer_progress import LayersComputed

_LAST_S = 10.0  # from the end of a prompt to when it is told


class EagerChannel:
    """The channel of one engine, whose layers it listens to."""

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._states = engine.states
        self._pages = engine.pages
        self._page_size = engine.config.page_size
        self._stream = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # By request: what was told of it, and the bytes that lay there then.
        self.read: dict[str, list[tuple[LayersComputed, list[Tensor]]]] = {}
        self._written: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def wait(self) -> None:
        """Wait for all copies."""
        if self._stream is not None:
            self._stream.synchronize()

    def told(self, computed: Sequence[LayersComputed]) -> None:
        """Copy what has been computed. The engine's `listen` takes it; it waits for nothing."""
        for each in computed:
            with self._on_stream():
                found = [place.clone() for place in self._places(each)]
            self.read.setdefault(each.request_id, []).append((each, found))

    def early(self, request_id: str, parked: Parked) -> tuple[int, int]:
        """Return how many copies of a request there are, and how many differ from what lies there
        now that all of its prompt is computed; forget them.

        Raises TimeoutError where the last is never told.
        """
        until = time.monotonic() + _LAST_S
        while not any(each.last for each, _ in list(self.read.get(request_id, ()))):
            if time.monotonic() > until:
                raise TimeoutError(f"{request_id}: nobody told that all layers are computed")
            time.sleep(1e-3)
        self.wait()
        differ, copies = 0, self.read.pop(request_id)
        for each, found in copies:
            if each.parked_state.state.slot != parked.state.slot:
                differ += 1
                continue
            now = self._places(each)
            differ += not all(torch.equal(a, b) for a, b in zip(found, now, strict=True))
        return len(copies), differ

    def forget(self, request_id: str) -> None:
        """Stop reading a request's memory: it is about to be free."""
        self.wait()
        self.read.pop(request_id, None)

    def _places(self, each: LayersComputed) -> list[Tensor]:
        """Return the bytes of the layers that are computed: of the state, and of the chunk's KV."""
        parked = each.parked_state
        found = [
            _bytes_of(self._states.storage[parked.state.slot], component)
            for component in self._states.layout.components
            if component.layer < each.recurrent
        ]
        first, end = each.start // self._page_size, -(-parked.state.tokens // self._page_size)
        for page in range(first, end):
            low = max(each.start - page * self._page_size, 0)
            high = min(parked.state.tokens - page * self._page_size, self._page_size)
            for component in self._pages.layout.components:
                if component.layer < each.attention:
                    token = component.nbytes // self._page_size
                    whole = _bytes_of(self._pages.storage[parked.state.pages[page]], component)
                    found.append(whole[low * token : high * token])
        return found

    def write_noise(self, reservation: Reservation) -> None:
        """Write random bytes into all that a ticket gives, at once."""
        places = self._ticket(reservation)
        with self._on_stream():
            noise = [torch.randint_like(place, 256) for place in places]
            for place, value in zip(places, noise, strict=True):
                place.copy_(value)
        self._written[reservation.request_id] = list(zip(places, noise, strict=True))

    def changed(self, reservation: Reservation) -> int:
        """Return how many slots and pages of a ticket hold other bytes than were written."""
        written = self._written.pop(reservation.request_id)
        self.wait()
        with self._on_stream():
            return sum(not torch.equal(place, value) for place, value in written)

    def move(self, parked: Parked, reservation: Reservation) -> None:
        """Copy the state of a held request into a ticket."""
        with self._on_stream():
            self._states.storage[reservation.state.slot].copy_(
                self._states.storage[parked.state.slot]
            )
            for mine, theirs in zip(parked.state.pages, reservation.state.pages, strict=True):
                if theirs in reservation.owned:
                    self._pages.storage[theirs].copy_(self._pages.storage[mine])
        self.wait()

    def _ticket(self, reservation: Reservation) -> list[Tensor]:
        pages = [self._pages.storage[page] for page in reservation.owned]
        return [self._states.storage[reservation.state.slot], *pages]


def _bytes_of(block: Tensor, component: Component) -> Tensor:
    return block[component.offset : component.offset + component.nbytes]
