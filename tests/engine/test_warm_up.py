"""The steps that an engine computes before its first request: every shape, and no trace of them but
compiled kernels."""

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.engines import assert_clean, greedy
from oracle.reference import Oracle
from oracle.specs import ONE_OF_EACH

from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import build_model
from baton.engine.engine import Engine
from baton.engine.forward.warm_up import WarmUp
from baton.engine.loading.weights import DummyWeights
from baton.engine.models.decoder import Decoder
from baton.engine.models.family_table import read_config
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.step.batch import Batch
from baton.engine.step.draft_batch import DraftBatch, DraftResult
from baton.engine.stream.forward_stream import InlineStream
from baton.kernels.torch_kernels import TorchKernels

PROMPTS = [tuple(range(3, 3 + length)) for length in (1, 5, 40, 70)]
SAMPLING = [
    greedy(12),
    SamplingParams(max_tokens=12, seed=7, ignore_eos=True, top_p=0.9, logprobs=2),
    SamplingParams(max_tokens=12, seed=8, ignore_eos=True, presence_penalty=0.5, min_tokens=12),
    replace(greedy(12), prompt_logprobs_start=0, logit_bias=((5, 3.0),)),
]


class Compiling(TorchKernels):
    """Torch's kernels, which say that launches compile them: as many as the test says."""

    count = 0

    @property
    def compilations(self) -> int | None:
        return self.count


def make(folder: Path, kernels: TorchKernels, **more: object) -> Engine:
    options = EngineConfig(
        model=folder,
        dtype=torch.float32,
        page_size=16,
        max_running=6,
        max_model_len=128,
        chunked_prefill_size=48,
        memory_bytes=1 << 28,
        cached_snapshots=20,
        mamba_track_interval=32,
        **more,  # type: ignore[arg-type]
    )
    config = read_config(options.model, options.dtype, options.ssm_dtype, mtp=options.mtp)
    model = build_model(config, DummyWeights(), torch.device("cpu"), kernels=kernels)
    return Engine(options, model, None, InlineStream())


@pytest.mark.parametrize("algorithm", [None, SpeculativeAlgorithm.NGRAM])
@pytest.mark.parametrize("name", ONE_OF_EACH[::3])
def test_an_engine_answers_after_its_warm_up_as_without_one(
    oracle: Oracle, name: str, algorithm: SpeculativeAlgorithm | None
) -> None:
    folder = oracle.checkpoint(name)
    cold = make(folder, TorchKernels(), speculative_algorithm=algorithm)
    warm = make(folder, Compiling(), speculative_algorithm=algorithm)
    assert not cold.pages.storage.any() and not cold.states.storage.any()
    assert warm.pages.storage[0].any() or not warm.pages.layout.page_bytes
    assert not warm.pages.storage[1:].any()
    assert not warm.states.storage[2:].any(), "a snapshot went to slot 1"
    assert warm.counters == cold.counters
    assert warm.status() == cold.status()
    assert warm.generate(PROMPTS, SAMPLING) == cold.generate(PROMPTS, SAMPLING)
    for engine in (cold, warm):
        assert_clean(engine)


@pytest.mark.parametrize("algorithm", [SpeculativeAlgorithm.MTP, SpeculativeAlgorithm.AUTO])
def test_drafts_of_the_models_own_layer_are_computed_too(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch, algorithm: SpeculativeAlgorithm
) -> None:
    rows: list[int] = []
    draft = Decoder.draft

    def noted(self: Decoder, batch: DraftBatch, *pools: Any) -> DraftResult:
        rows.append(batch.token_ids.shape[0])
        return draft(self, batch, *pools)

    monkeypatch.setattr(Decoder, "draft", noted)
    folder = oracle.checkpoint("qwen3_next_moe")
    engine = make(folder, Compiling(), mtp=True, speculative_algorithm=algorithm)
    assert set(rows) == {1, 6}
    assert engine.pages.storage[0].any() and not engine.pages.storage[1:].any()
    plain = make(folder, TorchKernels())
    for sampling in SAMPLING:
        expected, found = (each.generate(PROMPTS[:2], sampling) for each in (plain, engine))
        assert [o.token_ids for o in found] == [o.token_ids for o in expected]


def test_what_is_compiled_after_the_start_is_counted(
    oracle: Oracle, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = Compiling()
    kernels.count = 7
    with caplog.at_level(logging.INFO):
        engine = make(oracle.checkpoint(ONE_OF_EACH[0]), kernels)
    assert "7 kernels" in caplog.text
    engine.generate(PROMPTS[:1], greedy(2))
    assert engine.counters.late_compilations == 0
    kernels.count += 3
    engine.generate(PROMPTS[:1], greedy(2))
    assert engine.counters.late_compilations == 3


def warm_up(**more: int) -> WarmUp:
    sizes = {"chunk": 2048, "length": 4096, "running": 16, "vocab": 100, "grid": 64, "window": 4}
    return WarmUp(**sizes | more)


def prompt_tokens(batch: Batch) -> int:
    return sum(row.end - row.start for row in batch.prompts)


@pytest.mark.parametrize("chunk", [1, 2, 100, 512, 2048])
def test_a_prompt_of_every_power_of_two_begins_and_goes_on(chunk: int) -> None:
    batches = list(warm_up(chunk=chunk).batches())
    powers = {1 << power for power in range(math.ceil(math.log2(chunk)))} | {chunk}
    alone = [batch for batch in batches if not batch.decode_rows]
    assert {prompt_tokens(b) for b in alone if not b.prompts[0].start} >= powers
    assert {prompt_tokens(b) for b in alone if b.prompts[0].start} >= powers
    assert max(map(prompt_tokens, batches)) == chunk


@pytest.mark.parametrize("length", [4, 5, 8, 100])
@pytest.mark.parametrize("window", [1, 4])
def test_no_row_is_longer_than_the_longest_sequence(length: int, window: int) -> None:
    for batch in warm_up(length=length, window=window).batches():
        for row in batch.rows:
            assert 0 <= row.start < row.end < length
            assert all(row.start < tracked.depth <= row.end for tracked in row.tracked)


def test_each_number_of_rows_decodes_with_each_kind_of_sampling() -> None:
    batches = [batch for batch in warm_up().batches() if not batch.prompts and batch.window == 1]
    for size in (1, 2, 4, 8, 16):
        drawn = [batch.draws.records for batch in batches if batch.decode_rows == size]
        assert any(not records["special"].any() for records in drawn)
        assert any(records["random"].all() for records in drawn) == any(
            records["filtered"].any() or size == 1 for records in drawn
        )


def test_steps_of_drafts_have_each_window_and_all_rows() -> None:
    batches = [batch for batch in warm_up(window=8).batches() if batch.window > 1]
    assert {batch.window for batch in batches} == {2, 4, 8}
    assert {batch.decode_rows for batch in batches if batch.prompts} == {16}
    guesses = {(batch.window, row.guesses) for batch in batches for row in batch.decoding}
    assert guesses == {(window, n) for window in (2, 4, 8) for n in (0, window - 1)}
