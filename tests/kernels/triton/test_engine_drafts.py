"""An engine on Triton's kernels that verifies drafts: answers and snapshots are those of plain
decoding, all layers of a kind commit together, and nothing looks at the device."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import greedy, run, tokens_of
from engine.proposers import Known
from guarded_stream import guarded_stream
from guards import HostUploads, NoHostReads
from oracle.specs import SPECS
from torch import Tensor
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction
from triton_device import DEVICE

from baton.bench.checkpoints import write_checkpoint
from baton.engine.assembly.loader import build_model
from baton.engine.engine import Engine
from baton.engine.loading.weights import DummyWeights
from baton.engine.memory.request_tables import RequestTables
from baton.engine.models.decoder import Decoder
from baton.engine.models.family_table import read_config
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.sizing.plan import MemoryPlan
from baton.engine.speculation.proposer import DecodingStep, Proposers
from baton.kernels.base import Kernels
from baton.kernels.torch_kernels import TORCH
from baton.kernels.triton.triton_kernels import TritonKernels

TOKENS, WINDOW = 10, 4
_TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 32,
}


@dataclass(frozen=True)
class Case:
    """A model with two layers of one kind: a checkpoint with sizes that make it tiny.

    kernels: that verify a layer, and that commit all. grid: tokens between snapshots. prompts:
    their tokens; the answers get past a snapshot. pages: that requests share; where they are too
    few, one is preempted
    """

    checkpoint: str
    sizes: dict[str, Any]
    kernels: tuple[str, ...]
    grid: int = 16
    prompts: tuple[int, ...] = (11, 14)
    pages: int = 20


CASES = {
    "mamba2": Case(
        "granite_dense_nope",
        {
            **_TINY,
            "mamba_chunk_size": 16,
            "layer_types": ["mamba", "attention", "mamba"],
            "mamba_n_heads": 2,
            "mamba_d_head": 16,
            "mamba_expand": 1,
            "shared_intermediate_size": 32,
        },
        ("conv", "states"),
    ),
    "gated delta": Case(
        "qwen3_next_odd",
        {
            **_TINY,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_value_head_dim": 16,
        },
        ("conv", "deltas"),
        grid=64,
        prompts=(59,),
    ),
    "short conv": Case(
        "lfm2_odd",
        {**_TINY, "layer_types": ["conv", "full_attention", "conv"]},
        ("conv",),
        pages=2,
    ),
}


class KnownTensor:
    """A `DeviceProposer` of sequences that are known, whose guess of each third token is wrong. It
    reads nothing on the host."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, sequences)) + WINDOW
        rows = [[*known, *[0] * (longest - len(known))] for known in sequences]
        self._tokens = torch.tensor(rows, device=DEVICE)
        self._lens = torch.tensor([len(known) for known in sequences], device=DEVICE)
        wrong = torch.arange(longest, device=DEVICE) % 3 == 2
        self._guesses = torch.where(wrong, 5, self._tokens)

    def propose(
        self, tables: RequestTables, rows: Tensor, ends: Tensor, most: int, step: DecodingStep
    ) -> tuple[Tensor, Tensor]:
        longest = self._tokens.shape[1]
        asked = tables.tokens[rows, :longest]
        before = torch.arange(longest, device=DEVICE) < ends[:, None]
        alike = ((asked[:, None] == self._tokens) | ~before[:, None]).all(2)
        which = alike.int().argmax(1)
        ahead = ends[:, None] + torch.arange(most, device=DEVICE)
        drafts = self._guesses[which].gather(1, ahead.clamp(max=longest - 1))
        return drafts, (self._lens[which] - ends).clamp(0, most) * alike.any(1)


@dataclass
class Launches:
    """The kernels that were launched; of which those of verifying forwards and of commits."""

    all: list[str] = field(default_factory=list)
    verifies: list[Counter[str]] = field(default_factory=list)
    commits: list[Counter[str]] = field(default_factory=list)

    def forget(self) -> None:
        """Forget those of an engine's start, which computes steps of every shape on a GPU."""
        for each in (self.all, self.verifies, self.commits):
            each.clear()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    owner, method = (JITFunction, "run") if DEVICE.type == "cuda" else (GridExecutor, "__call__")
    launch, forward, commit = getattr(owner, method), Decoder.forward, Decoder.commit

    def launched(kernel: Any, *args: Any, **more: Any) -> Any:
        found.all.append(kernel.fn.__name__)
        return launch(kernel, *args, **more)

    def forwarded(model: Decoder, batch: Any, *pools: Any) -> Tensor:
        before = len(found.all)
        logits = forward(model, batch, *pools)
        if batch.window is not None:
            names = Counter(found.all[before:])
            found.verifies.append(Counter({n: c for n, c in names.items() if "_verify" in n}))
        return logits

    def committed(*args: Any) -> None:
        before = len(found.all)
        commit(*args)
        found.commits.append(Counter(found.all[before:]))

    monkeypatch.setattr(owner, method, launched)
    monkeypatch.setattr(Decoder, "forward", forwarded)
    monkeypatch.setattr(Decoder, "commit", committed)
    return found


@contextmanager
def guarded(counts: list[int]) -> Iterator[None]:
    with HostUploads() as uploads, NoHostReads():
        yield
    counts.append(uploads.count)


def answered(engine: Engine, specs: list[RequestSpec]) -> list[list[int]]:
    for spec in specs:
        engine.submit(spec)
    events = run(engine)
    return [tokens_of(events, spec.request_id) for spec in specs]


def make(model: ModelConfig, case: Case, kernels: Kernels, pages: int = 20, **more: Any) -> Engine:
    options = {key: more.pop(key) for key in ("stream", "proposers") if key in more}
    config = EngineConfig(
        model=model.folder,
        device=str(DEVICE) if kernels is not TORCH else "cpu",
        page_size=16,
        max_running=2,
        max_model_len=2 * case.grid,
        chunked_prefill_size=64,
        memory_bytes=1 << 28,
        cached_snapshots=4,
        mamba_track_interval=16,
        **more,
    )
    built = build_model(model, DummyWeights(), torch.device(config.device), kernels=kernels)
    plan = MemoryPlan(config, model, built.weight_bytes, 0)
    pools = plan.slots * plan.slot_layout.slot_bytes + (1 + pages) * plan.page_layout.page_bytes
    config = replace(config, memory_bytes=plan.budget_bytes - plan.pool_bytes + pools)
    return Engine(config, built, None, **options)


@pytest.mark.parametrize("kind", CASES)
def test_drafts_give_the_answers_and_the_states_of_plain_decoding(
    kind: str, launches: Launches, tmp_path: Path
) -> None:
    case = CASES[kind]
    spec = SPECS[case.checkpoint]
    config = {**spec.config, "model_type": spec.model_type, **case.sizes}
    model = read_config(write_checkpoint(tmp_path, config), torch.float32, torch.float32)
    rng = random.Random(0)  # always the same, so none of the answers has a near tie
    specs = [
        RequestSpec(f"r{i}", tuple(rng.randrange(3, 320) for _ in range(n)), greedy(TOKENS))
        for i, n in enumerate(case.prompts)
    ]
    expected = answered(make(model, case, TORCH), specs)
    assert answered(make(model, case, TritonKernels()), specs) == expected
    assert not launches.verifies and not launches.commits

    known = [(*spec.prompt_ids, *answer) for spec, answer in zip(specs, expected, strict=True)]
    uploads: list[int] = []
    around = lambda: guarded(uploads)  # noqa: E731
    engine = make(
        model,
        case,
        TritonKernels(),
        case.pages,
        stream=guarded_stream(DEVICE, around),
        proposers=Proposers(Known(known, 0.0, 320, rng), KnownTensor(known)),
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=WINDOW,
    )
    launches.forget()
    assert answered(engine, specs) == expected
    steps = len(launches.commits)
    assert 0 < steps < TOKENS
    layers = len(model.recurrent)
    assert layers > 1
    each = Counter({f"_verify_{kernel}": layers for kernel in case.kernels})
    once = Counter({f"_commit_{kernel}": 1 for kernel in case.kernels})
    assert launches.verifies == [each] * steps
    assert launches.commits == [once] * steps

    assert bool(engine.counters.preemptions) == (case.pages < 20)
    hits = engine.counters.state_hit_tokens

    # What follows resumes from snapshots that were made while drafts were verified.
    follow = [RequestSpec(f"next{i}", (*tokens, 7), greedy(2)) for i, tokens in enumerate(known)]
    assert answered(engine, follow) == answered(make(model, case, TORCH), follow)
    assert engine.counters.state_hit_tokens - hits == len(follow) * case.grid
    assert max(uploads) == 0
    engine.close()
