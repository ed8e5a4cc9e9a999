"""One engine in this process, timed at its own events."""

import random
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from baton.engine.engine import Engine
from baton.engine.events import TokenSampled
from baton.engine.request import RequestSpec
from baton.engine.sampling_params import SamplingParams

_SETTLING = 2  # steps at either end of a decode run that are not like the others


@dataclass(frozen=True)
class PromptTimes:
    """Of prompts submitted at once: until the first token of the first, and of the last."""

    first_s: float
    last_s: float


class TimedEngine:
    """Fresh random prompts each time, from `rng`."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self._engine = engine
        self._rng = rng
        self._submitted = 0

    def prompt(self, length: int) -> tuple[int, ...]:
        vocab = self._engine.model_config.vocab_size
        return tuple(self._rng.randrange(vocab) for _ in range(length))

    def prefill(self, batch: int, length: int) -> PromptTimes:
        """`batch` prompts of `length` tokens, one token each."""
        began = time.perf_counter()
        self._submit(batch, length, 1)
        times = self._run()
        return PromptTimes(times[0] - began, times[-1] - began)

    def decode_step(self, batch: int, prompt: int, steps: int) -> float:
        """Median seconds from one step's tokens to the next, all `batch` rows decoding."""
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
        """When each token came, until nothing is left to do."""
        times = []
        while self._engine.has_work:
            events = self._engine.step()
            now = time.perf_counter()
            times += [now for event in events if isinstance(event, TokenSampled)]
        return times
