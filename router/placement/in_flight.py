"""The load that this router's own requests put on workers."""

from collections import Counter


class InFlight:
    """One request's entry in the counts of the workers that it was placed on."""

    def __init__(self, prefill: str, decode: str, placed: Counter[str]) -> None:
        """prefill, decode: worker ids. placed: requests by worker id, updated in place."""
        self._placed = placed
        self._busy = [decode, prefill]
        placed.update(self._busy)

    def prefill_done(self) -> None:
        """Release the prefill worker: its first token came. Idempotent."""
        if len(self._busy) == 2:
            self._placed[self._busy.pop()] -= 1

    def release(self) -> None:
        """Release both workers: the request ended. Idempotent."""
        while self._busy:
            self._placed[self._busy.pop()] -= 1
