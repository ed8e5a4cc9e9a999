"""Hugging Face transformers on the same checkpoint, in the same process."""

import importlib.util
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from baton.bench.contract import Peer

_MODULE = "transformers"


def missing() -> Peer | None:
    """Return the reason why transformers cannot run here, or None."""
    if importlib.util.find_spec(_MODULE) is None:
        return {"skipped": "transformers is not installed"}
    return None


class TransformersPeer:
    """A transformers model that decodes greedily, one forward a token, with its own cache.

    Positions are always passed.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        transformers = importlib.import_module(_MODULE)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self._model: Any = loaded.eval()

    @torch.inference_mode()
    def prefill(self, prompts: list[tuple[int, ...]]) -> float:
        """Return the seconds until the next token of every prompt is known; all have one length."""
        began = time.perf_counter()
        self._forward(torch.tensor(prompts), 0, None)
        return time.perf_counter() - began

    @torch.inference_mode()
    def decode_step(self, prompts: list[tuple[int, ...]], steps: int) -> float:
        """Return the median seconds a step."""
        ids, cache = self._forward(torch.tensor(prompts), 0, None)
        seconds = []
        for step in range(steps):
            began = time.perf_counter()
            ids, cache = self._forward(ids[:, None], len(prompts[0]) + step, cache)
            seconds.append(time.perf_counter() - began)
        return median(seconds)

    def _forward(self, ids: torch.Tensor, start: int, cache: Any) -> tuple[torch.Tensor, Any]:
        """Run ids [rows, tokens] from position `start`; return each row's next token, and the
        cache.
        """
        positions = torch.arange(start, start + ids.shape[1]).expand(ids.shape)
        out = self._model(
            ids,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].argmax(-1), out.past_key_values
