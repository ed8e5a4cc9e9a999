"""Answers of an engine on the GPU beside those of one on the CPU: small models in float32.

Both have the same weights, cut prompts into chunks and cache prefixes. The CPU's engine runs
torch's kernels, which define what the others compute. It decodes token by token where the GPU's
verifies drafts by the model's own layer. FP8 checkpoints are files, which both read.
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

from baton.bench.checkpoints import write_checkpoint
from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.fp8_files import quantise
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.models import (
    DEEPSEEK_V3,
    GRANITE_SMALL,
    LFM2,
    MODELS,
    NEMOTRON_9B,
    QWEN3_NEXT,
    small_config,
    write_config,
)
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.output import Output
from baton.engine.settings.choices import LoadFormat, SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.kernels.kernel_choice import KernelChoice

_LENGTHS = (1, 17, 40, 65, 100, 150)  # tokens of the prompts
_CHUNK = 64  # prompt tokens a step
_TOKENS = 24  # of each answer
_MORE = 7  # tokens of a second turn, behind prompt and answer
_TIE = 1e-4  # between the two best log probabilities: rounding may choose either token
_FAR = 2e-4  # between log probabilities of one token
_TRAINED = Path(__file__).resolve().parents[3] / "examples" / "mtp"
_WITH_MTP = ("qwen3_next", "nemotron_h", "deepseek_v3")  # there: most of their drafts are right
_BLOCK = (32, 48)  # of FP8 weights, some of them partial
_FP8 = {
    "in blocks": (QWEN3_NEXT, _BLOCK),
    "by channel": (NEMOTRON_9B, None),
    "stacked experts": (GRANITE_SMALL, _BLOCK),
    "latent attention": (DEEPSEEK_V3, _BLOCK),
}


def mtp_and_fp8(part: Part) -> None:
    """Compare models with drafts by their own layer, and FP8 checkpoints, a line each."""
    rows = {f"{name} with MTP: tokens of the CPU": partial(_tell_mtp, name) for name in _WITH_MTP}
    for form, (config, block) in _FP8.items():
        what = f"{config['model_type']} in FP8, {form}: tokens of the CPU"
        rows[what] = partial(_tell_fp8, config, block)
    side_by_side(part, {what: partial(tell, what, part) for what, tell in rows.items()})


def same_tokens(part: Part) -> None:
    """Compare for each family of models, a line each."""
    configs = (*MODELS.values(), LFM2)
    names = {f"{config['model_type']}: tokens of the CPU": config for config in configs}
    rows = {what: partial(_tell, config, what, part) for what, config in names.items()}
    side_by_side(part, rows)


def _tell(config: dict[str, Any], what: str, part: Part) -> None:
    with TemporaryDirectory() as folder:
        path = write_config(Path(folder) / "model", config, small=True)
        _add_compared(what, part, _options(path, part))


def _tell_mtp(name: str, what: str, part: Part) -> None:
    options = replace(_options(_TRAINED / name, part), load_format=LoadFormat.SAFETENSORS)
    _add_compared(what, part, options, mtp=True)


def _tell_fp8(config: dict[str, Any], block: tuple[int, int] | None, what: str, part: Part) -> None:
    with TemporaryDirectory() as parent:
        folder = write_checkpoint(Path(parent) / "model", small_config(config))
        quantise(folder, block)
        options = replace(_options(folder, part), load_format=LoadFormat.SAFETENSORS)
        _add_compared(what, part, options)


def _options(folder: Path, part: Part) -> EngineConfig:
    options = options_of(folder, part.device, max_running=len(_LENGTHS), small=True)
    return replace(options, prefix_caching=True, chunked_prefill_size=_CHUNK)


def _add_compared(what: str, part: Part, options: EngineConfig, mtp: bool = False) -> None:
    """Add the line of an engine of these options, with drafts by the model's own layer or none,
    beside the CPU's without drafts."""
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":  # a product would be TF32's
        part.add(what, "NO FLOAT32", beside=f"products are {precision}", failed=True)
        return
    drafts = SpeculativeAlgorithm.MTP if mtp else SpeculativeAlgorithm.OFF
    ours = Engine.load(replace(options, mtp=mtp, speculative_algorithm=drafts))
    theirs = Engine.load(replace(options, device="cpu", kernels=KernelChoice.TORCH))
    with closing(ours), closing(theirs):
        fault, told = compared(ours, theirs)
        accepted, verified = ours.counters.draft_tokens_accepted, ours.counters.draft_tokens
    if mtp:
        told += f", {accepted} of {verified} drafts accepted"
        fault = fault or ("" if accepted else "NO DRAFT WAS RIGHT")
    part.add(what, fault or "alike", beside=told, failed=bool(fault))


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
