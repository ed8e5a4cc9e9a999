"""The load that this router's own requests put on workers."""

from collections import Counter
from collections.abc import Callable, Mapping


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
        self._listeners: list[tuple[Mapping[str, int], Callable[[int], None]]] = []

    def subscribe(self, rows: Mapping[str, int], listener: Callable[[int], None]) -> None:
        """Call `listener` with the row of the worker at every change of its requests or prompts.

        rows: the row of each worker that it wants to hear of; they may become others.
        """
        self._listeners.append((rows, listener))

    def add(self, worker_id: str, requests: int, prompt_tokens: int = 0, answers: int = 0) -> None:
        """Add to the load of a worker, or take from it."""
        self.changes += 1
        if answers:
            self.answers[worker_id] += answers
        if not requests and not prompt_tokens:
            return
        self.requests[worker_id] += requests
        self.prompt_tokens[worker_id] += prompt_tokens
        if prompt_tokens < 0:
            self.read[worker_id] -= prompt_tokens
        for rows, listener in self._listeners:
            row = rows.get(worker_id)
            if row is not None:
                listener(row)
