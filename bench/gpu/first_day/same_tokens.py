"""Answers of an engine on the GPU beside those of one on the CPU: small models in float32.

Both have the same weights, cut prompts into chunks and cache prefixes. The CPU's engine runs
torch's kernels, which define what the others compute.
"""

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.models import LFM2, MODELS, write_config
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.output import Output
from baton.kernels.kernel_choice import KernelChoice

_LENGTHS = (1, 17, 40, 65, 100, 150)  # tokens of the prompts
_CHUNK = 64  # prompt tokens a step
_TOKENS = 24  # of each answer
_MORE = 7  # tokens of a second turn, behind prompt and answer
_TIE = 1e-4  # between the two best log probabilities: rounding may choose either token
_FAR = 2e-4  # between log probabilities of one token


def same_tokens(part: Part) -> None:
    """Compare for each family of models, a line each."""
    configs = (*MODELS.values(), LFM2)
    side_by_side(part, {_name(config): partial(_tell, config, part) for config in configs})


def _name(config: dict[str, Any]) -> str:
    return f"{config['model_type']}: tokens of the CPU"


def _tell(config: dict[str, Any], part: Part) -> None:
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":  # a product would be TF32's
        part.add(_name(config), "NO FLOAT32", beside=f"products are {precision}", failed=True)
        return
    with TemporaryDirectory() as folder:
        path = write_config(Path(folder) / "model", config, small=True)
        options = options_of(path, part.device, max_running=len(_LENGTHS), small=True)
        options = replace(options, prefix_caching=True, chunked_prefill_size=_CHUNK)
        ours = Engine.load(options)
        theirs = Engine.load(replace(options, device="cpu", kernels=KernelChoice.TORCH))
    with closing(ours), closing(theirs):
        fault, told = compared(ours, theirs)
    part.add(_name(config), fault or "alike", beside=told, failed=bool(fault))


def compared(ours: Engine, theirs: Engine) -> tuple[str, str]:
    """Return what is wrong with our answers, or nothing, and how near they are to theirs.

    Prompts of several lengths; a second turn behind each of their answers; and the first prompts
    again, without log probabilities.
    """
    tokens = random.Random(0)
    vocab = theirs.plan.model_config.vocab_size
    first = [[tokens.randrange(3, vocab) for _ in range(length)] for length in _LENGTHS]
    greedy = SamplingParams(temperature=0, max_tokens=_TOKENS, ignore_eos=True)
    scored = replace(greedy, logprobs=2)
    expected = theirs.generate(first, scored)
    found = ours.generate(first, scored)
    said = [output.token_ids for output in expected]
    turns = [
        [*prompt, *answer, *(tokens.randrange(3, vocab) for _ in range(_MORE))]
        for prompt, answer in zip(first, said, strict=True)
    ]
    hits = ours.counters.state_hit_tokens
    expected += theirs.generate(turns, scored)
    found += ours.generate(turns, scored)
    hits = ours.counters.state_hit_tokens - hits
    again = [output.token_ids for output in ours.generate(first, greedy)]
    fault, worst, ties = differing(found, expected)
    told = f"{len(found)} answers, log probabilities to {worst:.0e}, {ties} ties, {hits} cached"
    if fault:
        return fault, told
    if not hits:
        return "NO PREFIX WAS CACHED", told
    if not ties and again != said:
        return "OTHER TOKENS without log probabilities", told
    return "", told


def differing(found: Sequence[Output], expected: Sequence[Output]) -> tuple[str, float, int]:
    """Return the first fault, or nothing, the largest distance between log probabilities of one
    token, and how many answers part at tokens that are almost equally probable."""
    worst, ties = 0.0, 0
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if len(ours.token_ids) != len(theirs.token_ids):
            return f"answer {number}: {len(ours.token_ids)} TOKENS", worst, ties
        for index, (mine, other) in enumerate(zip(ours.logprobs, theirs.logprobs, strict=True)):
            if mine.token_id != other.token_id:
                best, second = other.top_logprobs[:2]
                if best - second < _TIE:
                    ties += 1
                    break  # what follows is the answer to another text
                return f"answer {number}: OTHER TOKEN at {index}", worst, ties
            assert mine.logprob is not None and other.logprob is not None
            distance = abs(mine.logprob - other.logprob)
            worst = max(worst, distance)
            if not distance < _FAR:  # a number that is none, too
                return f"answer {number}: FAR by {distance:.0e} at {index}", worst, ties
    return "", worst, ties
