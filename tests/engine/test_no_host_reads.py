"""Steady prefill and decode of real models read nothing back from the device, and send it one pack.

The guard stands round everything that the forward stream runs: packing, forward, snapshots,
sampling. Results are read on the engine's own thread, a step later, outside it.
"""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from engine.engines import assert_clean, greedy, run, tokens_of
from guards import HostUploads, NoHostReads
from mtp_models import MtpCheckpoints
from oracle.mtp import MTP_SPECS
from oracle.reference import Oracle
from oracle.specs import ONE_OF_EACH, SPECS

from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.stream.forward_stream import ThreadStream
from baton.kernels.dispatch import KernelChoice

# Torch's kernels are those that a device runs; the native ones hide their reads from the guard.
CASES = [(name, KernelChoice.TORCH) for name in ONE_OF_EACH]
CASES += [(name, KernelChoice.AUTO) for name in ONE_OF_EACH if not SPECS[name].dense]


class CountedGuard:
    """A count of the steps that ran under the guard, and the largest number of copies that one made
    beside its pack."""

    def __init__(self) -> None:
        self.steps = 0
        self.uploads = 0

    def around(self) -> AbstractContextManager[object]:
        self.steps += 1
        return self.preparing()

    @contextmanager
    def preparing(self) -> Iterator[None]:
        with HostUploads() as uploads, NoHostReads():
            yield
        self.uploads = max(self.uploads, uploads.count)


def make(folder: Path, kernels: KernelChoice, stream: ThreadStream, **more: object) -> Engine:
    config = EngineConfig(
        model=folder,
        kernels=kernels,
        page_size=16,
        max_running=8,
        max_model_len=400,
        chunked_prefill_size=48,
        memory_bytes=1 << 28,
        cached_snapshots=20,
        mamba_track_interval=32,
        **more,  # type: ignore[arg-type]
    )
    return Engine(config, load_model(config), None, stream)


def sampling_of_every_kind(rng: random.Random, vocab: int) -> list[SamplingParams]:
    """Greedy, drawn and filtered, penalised, held back from ending, with log probabilities."""
    plain = greedy(20)
    drawn = SamplingParams(max_tokens=20, seed=rng.getrandbits(64), ignore_eos=True)
    return [
        plain,
        replace(plain, logprobs=3),
        replace(plain, presence_penalty=0.7, frequency_penalty=0.2, repetition_penalty=1.2),
        drawn,
        replace(drawn, top_k=7, top_p=0.8, min_p=0.01, temperature=0.7),
        replace(drawn, repetition_penalty=1.3, logprobs=0),
        replace(drawn, min_tokens=20, stop_token_ids=(rng.randrange(vocab),), ignore_eos=False),
        replace(plain, prompt_logprobs_start=3, prompt_logprobs=2),
        replace(drawn, allowed_token_ids=(3, 4)),  # which repeats itself
    ]


def talk(engine: Engine, rng: random.Random, vocab: int) -> None:
    """Two turns of some conversations, joined one after another, so that every step is a mixture
    of rows that decode, chunks, resumed prefixes and snapshots."""

    def drawn(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, vocab) for _ in range(rng.randint(low, high)))

    # With 20 tokens each, all get past the snapshot of the widest grid, at 64.
    prompts = [drawn(48, 70) for _ in range(9)]
    for turn in range(2):
        events = []
        for number, sampling in enumerate(sampling_of_every_kind(rng, vocab)):
            engine.submit(RequestSpec(f"{turn}.{number}", prompts[number], sampling))
            events += engine.step()
        events += run(engine)
        for number, prompt in enumerate(prompts):
            prompts[number] = (*prompt, *tokens_of(events, f"{turn}.{number}"), *drawn(1, 20))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_steps_that_guess_and_verify_drafts_read_nothing_on_the_host_either(
    oracle: Oracle, name: str, seeded: random.Random
) -> None:
    folder, vocab = oracle.checkpoint(name), SPECS[name].config["vocab_size"]
    drafts_read_nothing(folder, vocab, seeded, speculative_algorithm=SpeculativeAlgorithm.NGRAM)


@pytest.mark.parametrize("name", ["qwen3_next_moe", "nemotron_moe", "deepseek3_grouped"])
def test_drafts_of_the_models_own_layer_read_nothing_on_the_host(
    mtp_checkpoints: MtpCheckpoints, name: str, seeded: random.Random
) -> None:
    folder, vocab = mtp_checkpoints.folder(name), MTP_SPECS[name].spec.config["vocab_size"]
    algorithm = SpeculativeAlgorithm.MTP
    drafts_read_nothing(folder, vocab, seeded, mtp=True, speculative_algorithm=algorithm)


def drafts_read_nothing(folder: Path, vocab: int, rng: random.Random, **options: object) -> None:
    guard = CountedGuard()
    stream = ThreadStream(guard.around, preparing=guard.preparing)
    engine = make(folder, KernelChoice.TORCH, stream, **options)
    talk(engine, rng, vocab)
    engine.close()
    counters = engine.counters
    assert guard.steps == counters.steps > 40
    assert guard.uploads == 0
    assert counters.draft_rows
    assert counters.rows_behind == 0
    assert_clean(engine)


@pytest.mark.parametrize(("name", "kernels"), CASES)
def test_mixed_steps_read_nothing_on_the_host_and_take_one_copy_from_it(
    oracle: Oracle, name: str, kernels: KernelChoice, seeded: random.Random
) -> None:
    guard = CountedGuard()
    stream = ThreadStream(guard.around, preparing=guard.preparing)
    engine = make(oracle.checkpoint(name), kernels, stream)
    talk(engine, seeded, SPECS[name].config["vocab_size"])
    engine.close()
    counters = engine.counters
    assert guard.steps == counters.steps > 40
    assert guard.uploads == 0
    assert counters.state_hit_tokens
    assert bool(counters.snapshots_donated) == bool(engine.plan.model_config.recurrent)
    assert_clean(engine)
