"""One engine in this process, timed by its events."""

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.events import TokenSampled
from baton.engine.request.request import RequestSpec

_SETTLING = 2  # steps to leave out at either end of a decode run


@dataclass(frozen=True)
class PromptTimes:
    """Seconds until the first token of the first prompt, and of the last, of a batch."""

    first_s: float
    last_s: float


class TimedEngine:
    """An engine that is given new random prompts from `rng`."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self._submitted = 0

    def prompt(self, length: int) -> tuple[int, ...]:
        vocab = self._engine.plan.model_config.vocab_size
        return tuple(self._rng.randrange(vocab) for _ in range(length))

    def prefill(self, batch: int, length: int) -> PromptTimes:
        """Compute `batch` prompts of `length` tokens, for one token each."""
        began = time.perf_counter()
        self._submit(batch, length, 1)
        times = self._run()
        return PromptTimes(times[0] - began, times[-1] - began)

    def decode_step(self, batch: int, prompt: int, steps: int) -> float:
        """Return the median seconds between steps while all `batch` rows decode."""
        self._submit(batch, prompt, steps + 2 * _SETTLING + 1)
        times = self._run()
        # Tokens of one step come together; the last of each step marks its end.
        ends = times[batch - 1 :: batch]
        gaps = [b - a for a, b in pairwise(ends)]
        return median(gaps[_SETTLING:-_SETTLING])

    def _submit(self, batch: int, length: int, max_tokens: int) -> None:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        for _ in range(batch):
            self._submitted += 1
            spec = RequestSpec(f"bench-{self._submitted}", self.prompt(length), sampling)
            self._engine.submit(spec)

    def _run(self) -> list[float]:
        """Return the time of each token, until no work is left."""
        times = []
        while self._engine.has_work:
            events = self._engine.step()
            now = time.perf_counter()
            times += [now for event in events if isinstance(event, TokenSampled)]
        return times
