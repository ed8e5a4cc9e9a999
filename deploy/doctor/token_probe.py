"""Starts engines of made-up models, and compares what they compute with torch's CPU kernels.

Arguments: the device, and kinds of `made_up_models`. Prints JSON; see `describe`.
"""

import json
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch

from baton.core.sampling_params import SamplingParams
from baton.deploy.doctor.made_up_models import DRAFTS, KINDS
from baton.engine.engine import Engine
from baton.engine.settings.choices import LoadFormat, SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

_PROMPT = tuple(3 + 7 * place % 300 for place in range(150))
"""Longer than a chunk of a prompt, so that states go on from one to the next."""
_CHUNK = 64
_SAMPLING = SamplingParams(
    temperature=0.0,
    max_tokens=16,
    ignore_eos=True,
    logit_bias=((7, 100.0),),  # the same answer from all: log probabilities are without it
    logprobs=0,
    prompt_logprobs_start=0,
)


def describe(device: str, kinds: list[str]) -> dict[str, float]:
    """Return by its kind how far each model's log probabilities in bfloat16 lie from those in
    float32, as a multiple of how far those of torch in bfloat16 on a CPU do: about 1.
    """
    return {kind: _distance(KINDS[kind], device) for kind in kinds}


def _distance(model: dict[str, object], device: str) -> float:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(model))
        exact = _scores(folder, "cpu", KernelChoice.TORCH, torch.float32)
        rounded = _scores(folder, "cpu", KernelChoice.TORCH, torch.bfloat16)
        found = _scores(folder, device, KernelChoice.AUTO, torch.bfloat16, drafts=DRAFTS in model)
    return max(
        _apart(ours, right) / _apart(torch_s, right)
        for ours, torch_s, right in zip(found, rounded, exact, strict=True)
    )


def _apart(scores: list[float], right: list[float]) -> float:
    return fmean(abs(one - other) for one, other in zip(scores, right, strict=True))


def _scores(
    folder: Path, device: str, kernels: KernelChoice, dtype: torch.dtype, *, drafts: bool = False
) -> tuple[list[float], list[float]]:
    """Return the log probabilities of the prompt's tokens, and of the answer's."""
    config = EngineConfig(
        folder,
        dtype=dtype,
        device=device,
        kernels=kernels,
        load_format=LoadFormat.DUMMY,
        max_running=2,
        chunked_prefill_size=_CHUNK,
        memory_bytes=1 << 28,
        mtp=drafts,
        speculative_algorithm=SpeculativeAlgorithm.MTP if drafts else SpeculativeAlgorithm.OFF,
    )
    engine = Engine.load(config)
    try:
        (answer,) = engine.generate([_PROMPT], _SAMPLING)
    finally:
        engine.close()
    prompt = [score.logprob for score in answer.prompt_logprobs if score.logprob is not None]
    return prompt, [score.logprob for score in answer.logprobs if score.logprob is not None]


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1], sys.argv[2:])))
