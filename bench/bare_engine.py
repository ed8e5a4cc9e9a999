"""The machine's own limit for serving: one engine in this process, no cluster round it."""

import time
from collections.abc import Sequence
from dataclasses import replace

from baton.bench.load import Load
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.sampling_params import SamplingParams


class BareEngine:
    """All of the machine's cores, for the same requests."""

    def __init__(self, config: EngineConfig, threads: int) -> None:
        self._engine = Engine.load(replace(config, threads=threads, workers_on_host=1))

    def measure(self, load: Load, prompts: Sequence[Sequence[int]]) -> dict[str, float]:
        """Tokens a second over all prompts at once."""
        sampling = SamplingParams(temperature=0, max_tokens=load.output_len, ignore_eos=True)
        began = time.perf_counter()
        outputs = self._engine.generate(prompts, sampling)
        seconds = time.perf_counter() - began
        written = sum(len(output.token_ids) for output in outputs)
        return {
            "bare_output_tok_s": written / seconds,
            "bare_total_tok_s": (written + load.input_len * len(prompts)) / seconds,
        }
