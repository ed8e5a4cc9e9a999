"""The load that this router's own requests put on workers."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class PlacedLoad:
    """The load that this router's requests put on each worker, by worker id."""

    requests: Counter[str] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)  # to compute there


class InFlight:
    """One request's part of a `PlacedLoad`."""

    def __init__(self, prefill: str, decode: str, prompt_tokens: int, placed: PlacedLoad) -> None:
        """prefill, decode: worker ids. prompt_tokens: that the prefill worker is to compute.
        placed: updated in place.
        """
        self._placed = placed
        self._prefill, self._decode = prefill, decode
        self._prompt_tokens = prompt_tokens
        self._prefilling = self._running = True
        placed.requests.update((prefill, decode))
        placed.prompt_tokens[prefill] += prompt_tokens

    def prefill_done(self) -> None:
        """Release the prefill worker: its first token came. Idempotent."""
        if self._prefilling:
            self._prefilling = False
            self._placed.requests[self._prefill] -= 1
            self._placed.prompt_tokens[self._prefill] -= self._prompt_tokens

    def release(self) -> None:
        """Release both workers: the request ended. Idempotent."""
        self.prefill_done()
        if self._running:
            self._running = False
            self._placed.requests[self._decode] -= 1
