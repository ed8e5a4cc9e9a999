"""The load that this router's own requests put on workers."""

from collections import Counter
from dataclasses import dataclass, field

from baton.router.expected_states import Expected


@dataclass
class PlacedLoad:
    """The load that this router's requests put on each worker, by worker id."""

    requests: Counter[str] = field(default_factory=Counter)
    prompt_tokens: Counter[str] = field(default_factory=Counter)  # to compute there


class InFlight:
    """One request's part of a `PlacedLoad`."""

    def __init__(
        self, prefill: str, decode: str, prompt_tokens: int, placed: PlacedLoad, expected: Expected
    ) -> None:
        """prefill, decode: worker ids; the same where the rank computes the prompt itself.
        prompt_tokens: that `prefill` is to compute. placed: updated in place. expected: what the
        cache of `prefill` will have then.
        """
        self._expected = expected
        self._placed = placed
        self._prefill, self._decode = prefill, decode
        self._prompt_tokens = prompt_tokens
        self._prefilling = self._running = True
        placed.requests.update({prefill, decode})
        placed.prompt_tokens[prefill] += prompt_tokens

    def prefill_done(self) -> None:
        """Release the prefill worker: its first token came. Idempotent."""
        if self._prefilling:
            self._release_prefill()
            self._expected.made()

    def release(self) -> None:
        """Release both workers: the request ended. Idempotent."""
        if self._prefilling:
            self._release_prefill()
            self._expected.drop()
        if self._running:
            self._running = False
            self._placed.requests[self._decode] -= 1

    def _release_prefill(self) -> None:
        self._prefilling = False
        if self._prefill != self._decode:
            self._placed.requests[self._prefill] -= 1
        self._placed.prompt_tokens[self._prefill] -= self._prompt_tokens
