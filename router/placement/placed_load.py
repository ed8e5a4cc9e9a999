"""The load that this router's own requests put on workers."""

from collections import Counter
from collections.abc import Callable


class PlacedLoad:
    """The load that this router's requests put on each worker, by worker id."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.prompt_tokens: Counter[str] = Counter()  # to compute there
        self.answers: Counter[str] = Counter()  # whose first token came
        self.read: Counter[str] = Counter()
        """Prompt tokens that a decode rank may have computed since its last report: `Columns`
        forgets them at each."""
        self.changes = 0
        """Counts up with each change."""
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the worker's id at every change."""
        self._listeners.append(listener)

    def add(self, worker_id: str, requests: int, prompt_tokens: int = 0, answers: int = 0) -> None:
        """Add to the load of a worker, or take from it."""
        self.changes += 1
        self.requests[worker_id] += requests
        self.prompt_tokens[worker_id] += prompt_tokens
        self.answers[worker_id] += answers
        if prompt_tokens < 0:
            self.read[worker_id] -= prompt_tokens
        for listener in self._listeners:
            listener(worker_id)
