"""Two engines that decode the same prompts by turns, a slice of some steps each."""

import random
import time

from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec

PROMPT = 64  # tokens of a prompt, at least: lengths are spread over an interval
SLICE = 16  # steps of one engine before the other goes on: less than what disturbs a machine lasts
_SETTLING = 3  # the first of a slice, not timed: the other's last step may still be under way


class Rival:
    """Rows that decode in one engine, a slice at a time, with what each slice took."""

    def __init__(
        self, engine: Engine, batch: int, steps: int, spread: int, rng: random.Random
    ) -> None:
        """Submit `batch` prompts from `rng`, the same for all rivals, and start them.

        spread: their lengths differ by less than this many tokens.
        """
        self._engine = engine
        self._names = [f"bench-{row}" for row in range(batch)]
        self._tokens = batch * (SLICE - _SETTLING)  # timed, of a slice
        self.wall: list[float] = []  # seconds a slice
        self.cpu: list[float] = []
        engine.flush_cache()
        state = rng.getstate()
        vocab = engine.plan.model_config.vocab_size
        sampling = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
        for name in self._names:
            length = PROMPT + rng.randrange(spread)
            prompt = tuple(rng.randrange(vocab) for _ in range(length))
            engine.submit(RequestSpec(name, prompt, sampling))
        rng.setstate(state)
        while engine.status().waiting:
            engine.step()
        for _ in range(_SETTLING):
            engine.step()
        self._snapshots = engine.counters.snapshots_written

    def decode_slice(self) -> None:
        for _ in range(_SETTLING):
            self._engine.step()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(SLICE - _SETTLING):
            self._engine.step()
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    def rates(self, interval: int) -> dict[str, float]:
        """Return tokens a second, of time and of CPU time, and snapshots a step."""
        slices = len(self.wall)
        written = self._engine.counters.snapshots_written - self._snapshots
        return {
            f"tok_s_{interval}": slices * self._tokens / sum(self.wall),
            f"tok_cpu_s_{interval}": slices * self._tokens / sum(self.cpu),
            f"tracked_{interval}": written / (slices * SLICE),
        }

    def end(self) -> None:
        for name in self._names:
            self._engine.cancel(name, "measured")
        while self._engine.has_work:
            self._engine.step()
