"""Drafts by multi-token prediction: answers are those of plain decoding, bit for bit, and drafts
behind a prefix are the same wherever it was computed.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.engines import finish_of, hand_over, run, tokens_of
from engine.test_oracle import load
from mtp_models import MtpCheckpoints
from oracle.mtp import MTP_SPECS
from torch import Tensor

from baton.core.drafts import DraftSource
from baton.core.errors import ConfigError
from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.memory.request_tables import RequestTables
from baton.engine.request.events import Event, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.mtp import MtpProposer
from baton.engine.speculation.proposer import DecodingStep
from baton.kernels.native.library import load as library

NAME = "qwen3_next_moe"
GRID = 64
VOCAB = MTP_SPECS[NAME].spec.config["vocab_size"]
HOT = 100.0  # temperature
NEAR_TIE = 1e-4  # of logits
LENGTHS = (1, 2, 16, 64, 65, 100, 170, 300)

Guessed = dict[tuple[int, ...], tuple[int, ...]]
"""The drafts behind sequences, by the tokens of these."""

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture
def folder(mtp_checkpoints: MtpCheckpoints) -> Path:
    if library() is None:
        pytest.skip("no C++ compiler")
    return mtp_checkpoints.folder(NAME)


def options(folder: Path, dtype: torch.dtype = torch.float32) -> EngineConfig:
    return EngineConfig(
        model=folder,
        dtype=dtype,
        page_size=16,
        max_running=6,
        chunked_prefill_size=2 * GRID,
        max_model_len=600,
        memory_bytes=1 << 28,
        cached_snapshots=16,
        snapshots_per_prefill=4,
        mamba_track_interval=GRID,
        tickets=2,
        held_fraction=1.0,
        canary=True,
    )


def with_mtp(config: EngineConfig, tokens: int = 4) -> EngineConfig:
    return replace(
        config,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        speculative_num_draft_tokens=tokens,
    )


def random_sampling(rng: random.Random, choices: int) -> SamplingParams:
    """Any sampling of one of few tokens, which random weights guess now and then."""
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.5]),
        top_p=rng.choice([1.0, 0.9]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.3]),
        allowed_token_ids=tuple(rng.sample(range(3, VOCAB), choices)),
        stop_token_ids=rng.choice([(), (rng.randrange(3, VOCAB),)]),
        seed=rng.randrange(1 << 32),
        max_tokens=rng.randint(1, 60),
        ignore_eos=True,
        logprobs=rng.choice([None, 3]),
    )


def random_prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, VOCAB) for _ in range(length))


def requests(rng: random.Random, lengths: Sequence[int] = LENGTHS) -> list[RequestSpec]:
    return [
        RequestSpec(f"r{n}", random_prompt(rng, length), random_sampling(rng, rng.randint(1, 3)))
        for n, length in enumerate(lengths)
    ]


def poisoned(config: EngineConfig) -> Engine:
    engine = Engine(config, load_model(config), None)
    for pool in (engine.states, engine.pages):
        pool.storage.fill_(0xFF)
    return engine


def answered(engine: Engine, specs: Sequence[RequestSpec]) -> list[Event]:
    for spec in specs:
        engine.submit(spec)
    return run(engine)


def said(events: Sequence[Event], name: str) -> list[TokenSampled]:
    return [e for e in events if isinstance(e, TokenSampled) and e.request_id == name]


def assert_same(specs: Sequence[RequestSpec], plain: list[Event], found: list[Event]) -> None:
    """Compare tokens and their log probabilities."""
    for spec in specs:
        assert said(found, spec.request_id) == said(plain, spec.request_id), spec.request_id


def assert_same_tokens(
    specs: Sequence[RequestSpec], plain: list[Event], found: list[Event]
) -> None:
    """Compare tokens alone: a state of steps that is computed again as one of a prompt, or is cut
    off the grid, has other last bits, with drafts or without."""
    for spec in specs:
        assert tokens_of(found, spec.request_id) == tokens_of(plain, spec.request_id)


def right_of(engine: Engine) -> int:
    return dict(zip(DraftSource, engine.counters.drafts_accepted, strict=True))[DraftSource.MTP]


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> Guessed:
    """Record the drafts of every engine from now on."""
    found: Guessed = {}
    propose = MtpProposer.propose

    def recorded(
        self: MtpProposer,
        tables: RequestTables,
        rows: Tensor,
        ends: Tensor,
        most: int,
        step: DecodingStep,
    ) -> tuple[Tensor, Tensor]:
        drafts, counts = propose(self, tables, rows, ends, most, step)
        columns = rows.tolist(), ends.tolist(), counts.tolist(), drafts.tolist()
        for row, end, count, tokens in zip(*columns, strict=True):
            if count:
                found[tuple(tables.tokens[row, :end].tolist())] = tuple(tokens[:count])
        return drafts, counts

    monkeypatch.setattr(MtpProposer, "propose", recorded)
    return found


def taken(guessed: Guessed) -> Guessed:
    """Take what was guessed so far."""
    found = dict(guessed)
    guessed.clear()
    return found


def assert_same_guesses(cold: Guessed, found: Guessed, least: int) -> None:
    """Compare the drafts behind each sequence, as many as both have."""
    common = cold.keys() & found.keys()
    assert len(common) >= least, (len(cold), len(found), len(common))
    for tokens in common:
        both = zip(cold[tokens], found[tokens], strict=False)
        assert all(mine == theirs for mine, theirs in both), len(tokens)


@both_dtypes
@pytest.mark.parametrize("tokens", [2, 3, 4, 8])
def test_any_sampling_gives_the_bits_of_plain_decoding(
    folder: Path, dtype: torch.dtype, tokens: int
) -> None:
    config = options(folder, dtype)
    specs = requests(random.Random(tokens))
    plain = answered(poisoned(config), specs)
    engine = poisoned(with_mtp(config, tokens))
    assert_same(specs, plain, answered(engine, specs))
    counts = dict(zip(DraftSource, engine.counters.drafts_proposed, strict=True))
    assert counts[DraftSource.MTP] > right_of(engine) > 10


@both_dtypes
@pytest.mark.parametrize("name", ["qwen3_5_moe", "nemotron_moe", "deepseek3_grouped"])
def test_other_families_give_the_bits_of_plain_decoding(
    mtp_checkpoints: MtpCheckpoints, folder: Path, dtype: torch.dtype, name: str
) -> None:
    config = replace(options(folder, dtype), model=mtp_checkpoints.folder(name))
    specs = requests(random.Random(name))
    plain = answered(poisoned(config), specs)
    engine = poisoned(with_mtp(config))
    assert_same(specs, plain, answered(engine, specs))
    assert right_of(engine) > 10


def test_drafts_are_those_of_the_reference(
    mtp_checkpoints: MtpCheckpoints, folder: Path, guessed: Guessed
) -> None:
    """Three drafts behind what steps and chunks have left, against one forward in float64."""
    rng = random.Random("reference")
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    specs = [RequestSpec(f"r{n}", random_prompt(rng, n), greedy) for n in (2, 15, 33, 70)]
    answered(poisoned(replace(with_mtp(options(folder)), chunked_prefill_size=GRID // 2)), specs)
    whole = [(ids, drafts) for ids, drafts in guessed.items() if len(drafts) == 3]
    assert len(whole) >= len(specs)
    reference = mtp_checkpoints.reference(NAME)
    for ids, drafts in whole:
        logits = reference.draft(ids, drafts[:-1])
        below = logits.max(-1).values - logits[torch.arange(3), torch.tensor(drafts)]
        assert float(below.max()) < NEAR_TIE, (len(ids), drafts)


def test_drafts_are_drawn_with_the_noise_of_what_they_guess(folder: Path) -> None:
    """So hot that noise decides nearly alone: with noise of their own, half of them were right."""
    rng = random.Random("noise")
    specs = [
        RequestSpec(
            f"r{n}",
            random_prompt(rng, 20),
            SamplingParams(
                temperature=HOT,
                seed=n,
                allowed_token_ids=tuple(rng.sample(range(3, VOCAB), 2)),
                max_tokens=60,
                ignore_eos=True,
            ),
        )
        for n in range(4)
    ]
    engine = poisoned(with_mtp(options(folder)))
    answered(engine, specs)
    assert right_of(engine) > 0.9 * engine.counters.draft_tokens > 100


@both_dtypes
def test_answers_tell_how_many_drafts_of_the_layer_were_right(
    folder: Path, dtype: torch.dtype
) -> None:
    engine = poisoned(with_mtp(options(folder, dtype)))
    (spec,) = requests(random.Random(4), [30])
    drafts = finish_of(answered(engine, [replace_length(spec, 40)]), "r0").usage.drafts
    count = drafts.of(DraftSource.MTP)
    assert drafts.proposed == count.proposed > 0
    assert drafts.accepted == count.accepted == right_of(engine)


def replace_length(spec: RequestSpec, tokens: int) -> RequestSpec:
    return replace(spec, sampling=replace(spec.sampling, max_tokens=tokens))


@both_dtypes
def test_drafts_of_a_prefix_are_the_same_however_it_was_computed(
    folder: Path, dtype: torch.dtype, guessed: Guessed
) -> None:
    """Alone in one chunk; cut into chunks beside others; behind a snapshot; handed over."""
    rng = random.Random(f"prefixes {dtype}")
    begin = random_prompt(rng, 2 * GRID)
    specs = []
    for number, length in enumerate((40, 90, 171, 1)):
        # A few tokens are often guessed; those of the whole vocabulary show every difference.
        choices = (2, VOCAB - 3)[number % 2]
        sampling = replace(random_sampling(rng, choices), max_tokens=40, stop_token_ids=())
        specs.append(RequestSpec(f"r{number}", begin + random_prompt(rng, length), sampling))
    config = with_mtp(options(folder, dtype))
    plain: list[Event] = []
    right = 0
    for spec in specs:
        alone = poisoned(replace(config, prefix_caching=False, chunked_prefill_size=512))
        plain += answered(alone, [spec])
        right += right_of(alone)
    cold = taken(guessed)
    assert right > 10

    engine = poisoned(replace(config, chunked_prefill_size=GRID, max_running=6))
    assert_same(specs, plain, answered(engine, specs))
    assert_same_guesses(cold, taken(guessed), 60)

    for spec in specs:  # the first two GRIDs are now cached
        again = replace(spec, request_id=f"{spec.request_id}-again")
        before = engine.counters.state_hit_tokens
        events = answered(engine, [again])
        assert engine.counters.state_hit_tokens - before >= 2 * GRID
        assert tokens_of(events, again.request_id) == tokens_of(plain, spec.request_id)
    assert_same_guesses(cold, taken(guessed), 60)

    source, target = poisoned(replace(config, chunked_prefill_size=GRID).for_prompts), engine
    for spec in specs:
        sent = replace(spec, request_id=f"{spec.request_id}-sent")
        source.submit(replace(sent, hold=True))
        events = run(source)
        (token,) = tokens_of(events, sent.request_id)
        hand_over(source, target, sent, (token,))
        events += run(target)
        assert tokens_of(events, sent.request_id) == tokens_of(plain, spec.request_id)
    assert_same_guesses(cold, taken(guessed), 60)
    assert source.counters.draft_tokens == 0


def test_drafts_are_the_same_after_a_preemption(folder: Path, guessed: Guessed) -> None:
    rng = random.Random("preempted")
    specs = [
        RequestSpec(f"r{n}", random_prompt(rng, 60), replace(
            random_sampling(rng, 2), max_tokens=60, stop_token_ids=()
        ))
        for n in range(5)
    ]  # fmt: skip
    config = with_mtp(options(folder))
    cold: list[Event] = []
    for spec in specs:
        cold += answered(poisoned(replace(config, prefix_caching=False)), [spec])
    first = taken(guessed)
    engine = load(
        folder,
        pages=18,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        chunked_prefill_size=32,
        canary=True,
    )
    assert_same_tokens(specs, cold, answered(engine, specs))
    assert engine.counters.preemptions > 0
    assert_same_guesses(first, taken(guessed), 60)


def assert_no_padding_is_read(
    engine: Engine, specs: Sequence[RequestSpec], plain: list[Event]
) -> None:
    """Answer the requests with NaN in slot 0 and page 0 before each step; some are preempted."""

    def poison(_: Sequence[object]) -> None:
        for pool in (engine.states, engine.pages):
            pool.storage[0].fill_(0xFF)

    for spec in specs:
        engine.submit(spec)
    poison([])
    assert_same_tokens(specs, plain, run(engine, poison))
    assert engine.counters.preemptions > 0 and right_of(engine) > 10


def test_what_lies_in_the_padding_slot_and_page_reaches_no_request(folder: Path) -> None:
    """Mixed batches, chunk ends, padding of windows and preempted requests, with NaN in slot 0 and
    page 0 before each step."""
    rng = random.Random("padding")
    specs = requests(rng, (1, 3, 40, 60, 75, 90, 130, 20, 33))
    plain = answered(poisoned(options(folder)), specs)
    engine = load(
        folder,
        pages=16,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        speculative_num_draft_tokens=8,
        chunked_prefill_size=32,
        overlap=False,
        canary=True,
    )

    assert_no_padding_is_read(engine, specs, plain)


def test_layouts_with_the_layer_are_not_those_without(folder: Path) -> None:
    config = options(folder)
    plain, drafting = (Engine.load(each).plan for each in (config, with_mtp(config)))
    prompts = Engine.load(with_mtp(config).for_prompts).plan
    assert prompts.slot_layout == drafting.slot_layout
    assert prompts.page_layout == drafting.page_layout
    assert plain.page_layout.page_bytes < drafting.page_layout.page_bytes
    assert plain.slot_layout.slot_bytes < drafting.slot_layout.slot_bytes


def test_drafts_of_a_layer_that_is_not_run_are_refused(folder: Path) -> None:
    config = replace(options(folder), speculative_algorithm=SpeculativeAlgorithm.MTP)
    with pytest.raises(ConfigError, match="set mtp too"):
        Engine.load(config)
