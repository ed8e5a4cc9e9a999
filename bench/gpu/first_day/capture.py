"""Captured decode steps beside the same steps without a capture: tokens, and all bits.

Small models in float32 and models of few layers at full width in bf16, of one token a request, of
windows of drafts, and of drafts by the model's own layer, while another thread uses the device.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from baton.bench.gpu.device_engine import options_of
from baton.bench.gpu.first_day.busy_thread import BusyThread
from baton.bench.gpu.first_day.checked_model import DEPTH, CheckedModel
from baton.bench.gpu.first_day.processes import side_by_side
from baton.bench.gpu.first_day.same_tokens import differing
from baton.bench.gpu.models import (
    FEW_LAYERS,
    MTP_LAYERS,
    DeviceWeights,
    small_config,
    write_config,
)
from baton.bench.gpu.parts import Part
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model, divided_model
from baton.engine.engine import Engine
from baton.engine.layout.batch_sizes import draft_sizes, window_sizes
from baton.engine.loading.weights import DummyWeights
from baton.engine.memory.request_tables import RequestTables
from baton.engine.models.decoder import Decoder
from baton.engine.models.family_table import configured_model
from baton.engine.replay.graphed_model import CudaCapture
from baton.engine.request.output import Output
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import DecodingStep, Proposers
from baton.kernels.dispatch import select

_RUNNING = 16  # requests: captured steps of 1, 2, 4, 8 and 16, and with drafts of 1, 2 and 4
_EXPERTS = 32  # of a model at full width: several of them share the device
_KEY = 4  # first tokens, by which a sequence is known
_WINDOW = 4  # tokens that a step verifies of a request


def capture(part: Part) -> None:
    """Check each model with each window, a line each."""
    rows: dict[str, Callable[[], None]] = {}
    for small in (True,) if part.dry else (True, False):
        dtype = "float32" if small else "bf16"
        for config in FEW_LAYERS:
            name = f"{config['model_type']}, {dtype}"
            rows[name] = partial(_check, name, config, part, small)
        for config in MTP_LAYERS:
            name = f"{config['model_type']}, {dtype}, MTP"
            rows[name] = partial(_check_mtp, name, config, part, small)
    side_by_side(part, rows)


def _check(name: str, config: dict[str, Any], part: Part, small: bool) -> None:
    with TemporaryDirectory() as folder:
        options = _options(_written(folder, config, small), part, small)
        built = _built(options, part, small)
        with closing(Engine(options, built, None)) as eager:
            expected = served(eager, _RUNNING)
        for tokens in (1, _WINDOW):
            what = f"{name}, windows of {tokens}"
            part.row(what, partial(_tell, what, options, part, built, tokens, expected))


def _check_mtp(name: str, config: dict[str, Any], part: Part, small: bool) -> None:
    """Check steps whose drafts are the model's own layer's, and its depths."""
    with TemporaryDirectory() as folder:
        options = _options(_written(folder, config, small), part, small, mtp=True)
        built = _built(options, part, small)
        with closing(Engine(options, built, None)) as eager:
            expected = served(eager, _RUNNING)
        _tell(name, options, part, built, _WINDOW, expected)


def _written(folder: str, config: dict[str, Any], small: bool) -> Path:
    """Write the config of a small model, or of one of full width with few experts."""
    fewer = {"num_experts": _EXPERTS} if "num_experts" in config else {}
    named = small_config(config) if small else {**config, **fewer}
    return write_config(Path(folder) / "model", named, small=False)


def _options(path: Path, part: Part, small: bool, mtp: bool = False) -> EngineConfig:
    """Return options with pools of moderate size: a check copies them in each step."""
    options = replace(
        options_of(path, part.device, _RUNNING, small),
        max_model_len=256 if small else 512,
        chunked_prefill_size=128 if small else 512,
        memory_bytes=1 << 40,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=_WINDOW,
        mtp=mtp,
    )
    model = divided_model(configured_model(options), size=1)
    plan = MemoryPlan(options, model.config, model.weight_bytes, 0)
    pools = 3 * _RUNNING * (plan.slot_layout.slot_bytes + 8 * plan.page_layout.page_bytes)
    budget = plan.budget_bytes - plan.pool_bytes + pools
    plain = SpeculativeAlgorithm.OFF
    return replace(options, memory_bytes=budget, speculative_algorithm=plain)


def _built(options: EngineConfig, part: Part, small: bool) -> Decoder:
    model = configured_model(options)
    kernels = select(part.device, model.dtype, options.kernels)
    source = DummyWeights() if small else DeviceWeights(part.device, model.dtype)
    return build_model(model, source, part.device, kernels=kernels)


def _tell(
    what: str,
    options: EngineConfig,
    part: Part,
    built: Decoder,
    tokens: int,
    expected: list[Output],
) -> None:
    """Check steps that verify so many tokens of each request. expected: the answers without a
    capture."""
    running = len(expected)
    proposers = None
    mtp = built.config.mtp
    if mtp:
        options = replace(options, speculative_algorithm=SpeculativeAlgorithm.MTP)
    elif tokens > 1:
        options = replace(options, speculative_algorithm=SpeculativeAlgorithm.NGRAM)
        asked = prompts(running, built.config.vocab_size)
        known = [[*prompt, *e.token_ids] for prompt, e in zip(asked, expected, strict=True)]
        proposers = Proposers(NgramProposer(), KnownAnswers(known, part.device))
    capture = _run_again if part.dry else CudaCapture()
    model = CheckedModel(built, running, capture)
    with closing(Engine(options, model, None, proposers=proposers)) as engine:
        with BusyThread(part.device) as busy:
            model.watched = True
            found = served(engine, running)
        accepted = engine.counters.draft_tokens_accepted
    fault, worst, ties = differing(found, expected)
    if options.dtype != torch.float32:
        ties, fault = ties + bool(fault), ""  # another number of rows may round to another token
    fault = busy.fault or fault_of(model, running, tokens, drafts=mtp) or fault
    told = (
        f"{sum(model.steps.values())} steps, log probabilities to {worst:.0e}, {ties} ties, "
        f"{accepted} drafts accepted, {busy.rounds} rounds of another thread"
    )
    part.add(what, fault or "same bits", beside=told, failed=bool(fault))


def _run_again(forward: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """Take the place of a CUDA graph on a CPU."""
    result = forward().clone()

    def replay() -> None:
        result.copy_(forward())

    return replay, result


def prompts(count: int, vocab: int) -> list[list[int]]:
    """Return random prompts, the same for the same numbers."""
    tokens = random.Random(0)
    return [
        [tokens.randrange(3, vocab) for _ in range(tokens.randint(5, 40))] for _ in range(count)
    ]


def served(engine: Engine, requests: int) -> list[Output]:
    """Return greedy answers, the last ones much longer: all numbers of requests decode."""
    greedy = SamplingParams(temperature=0, ignore_eos=True, logprobs=2)
    lengths = [6 + number * (number + 1) // 3 for number in range(requests)]
    sampling = [replace(greedy, max_tokens=length) for length in lengths]
    return engine.generate(prompts(requests, engine.plan.model_config.vocab_size), sampling)


class KnownAnswers:
    """A `DeviceProposer` of what follows in known sequences, a third of it wrong."""

    def __init__(self, sequences: list[list[int]], device: torch.device) -> None:
        longest = max(map(len, sequences))
        padded = [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
        self._known = torch.tensor(padded).to(device)

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        """See `DeviceProposer`. A sequence is known by its first tokens."""
        known = self._known
        begun = tables.tokens[rows][:, None, :_KEY] == known[None, :, :_KEY]
        mine = known[begun.all(-1).long().argmax(1)]
        places = ends[:, None] + torch.arange(most, device=known.device)
        guesses = mine.gather(1, places.clamp(max=known.shape[1] - 1))
        guesses = torch.where(places % 3 == 0, 3, guesses)
        return guesses, torch.full_like(ends, most)


def fault_of(model: CheckedModel, running: int, window: int, drafts: bool = False) -> str:
    """Return what is wrong with the steps that were checked, or nothing. drafts: the model's own
    layer gives them."""
    if model.faults:
        kinds = Counter(model.faults)
        return f"OTHER BITS in {len(model.faults)} steps: {'; '.join(list(kinds)[:3])}"
    seen = {(step.size, step.tokens, step.commit) for step in model.steps}
    wanted = {
        (size, 0 if tokens == 1 else tokens, commit)
        for tokens in ((window,) if window > 1 else (1,))
        for size in window_sizes(running, tokens)
        for commit in ((False, True) if tokens > 1 else (False,))
    }
    if drafts:
        wanted |= {(size, DEPTH, False) for size in draft_sizes(running)}
    missing = wanted - seen
    if missing:
        return f"NOT CHECKED: {sorted(missing)}"
    padded = {step.size for step in model.steps if step.requests < step.size}
    most = max(size for size, _, _ in wanted)
    return "" if most in padded else f"NOT CHECKED: a padding row in {most}"
