"""The limit for serving on this machine: one engine in this process, without a cluster."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from baton.bench.cluster.load import Load
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig


class BareEngine:
    """An engine that is given requests by calls."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine.load(replace(config, workers_on_host=1))

    def measure(
        self, load: Load, prompts: Sequence[Sequence[int]], threads: int
    ) -> dict[str, float]:
        """Return tokens a second over all prompts at once, on `threads` cores."""
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
