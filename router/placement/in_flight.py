"""The load that one request puts on its workers."""

from baton.router.cluster_view.expected_states import Expected
from baton.router.placement.placed_load import PlacedLoad


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
        self._answers = 0  # 1 while its answer is being written
        placed.add(decode, 1)
        placed.add(prefill, int(prefill != decode), prompt_tokens)

    def prefill_done(self) -> None:
        """Release the prefill worker: its first token came. Idempotent."""
        if self._prefilling:
            self._release_prefill()
            self._answers = 1
            self._placed.add(self._decode, 0, answers=1)
            self._expected.made()

    def release(self) -> None:
        """Release both workers: the request ended. Idempotent."""
        if self._prefilling:
            self._release_prefill()
            self._expected.drop()
        if self._running:
            self._running = False
            self._placed.add(self._decode, -1, answers=-self._answers)

    def _release_prefill(self) -> None:
        self._prefilling = False
        self._placed.add(self._prefill, -int(self._prefill != self._decode), -self._prompt_tokens)
