"""The machine's own limit for serving: one engine in this process, no cluster round it."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from baton.bench.load import Load
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.sampling_params import SamplingParams


class BareEngine:
    """The same requests, given to the engine by a call."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine.load(replace(config, workers_on_host=1))

    def measure(
        self, load: Load, prompts: Sequence[Sequence[int]], threads: int
    ) -> dict[str, float]:
        """Tokens a second over all prompts at once, on `threads` cores."""
        torch.set_num_threads(threads)
        sampling = SamplingParams(temperature=0, max_tokens=load.output_len, ignore_eos=True)
        began = time.perf_counter()
        outputs = self._engine.generate(prompts, sampling)
        seconds = time.perf_counter() - began
        read = load.input_len * len(prompts)
        written = sum(len(output.token_ids) for output in outputs)
        return {
            f"bare_{threads}_threads_output_tok_s": written / seconds,
            f"bare_{threads}_threads_total_tok_s": (read + written) / seconds,
        }
