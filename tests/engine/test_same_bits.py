"""Native kernels give a request the same bits whatever runs beside it and wherever it is cut.

Logits are compared as bytes, and so are the log probabilities of seeded answers: equal tokens
would show nothing of a difference that is too small to change one of them.
"""

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from engine.engines import hand_over, run, step_until, tokens_of
from engine.proposers import Known
from engine.test_oracle import load
from oracle.reference import Oracle
from oracle.specs import SPECS
from step_driver import Row, StepDriver

from baton.core.sampling_params import SamplingParams
from baton.engine.assembly.loader import load_model
from baton.engine.engine import Engine
from baton.engine.request.events import Event, TokenSampled
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.proposer import Proposers
from baton.engine.step.model import Model
from baton.kernels.native.library import load as library

# One of each family that stands for it in every run; the others have other sizes.
ONE_A_FAMILY = (
    "mamba2_grouped",
    "llama_tied",
    "bamba_grouped",
    "lfm2_tied",
    "falcon_normed",
    "nemotron_moe",
    "zamba2_adapted",
    "granite_moe_nope",
    "kimi_moe",
    "qwen3_next_moe",
    "qwen3_tied",
    "deepseek3_grouped",
    "granite3_tied",
    "deepseek2_grouped",
    "qwen3_5_moe",
)
# Experts of 60 channels do not run in bfloat16.
CASES = [
    pytest.param(name, dtype, marks=() if name in ONE_A_FAMILY else pytest.mark.chaos)
    for name in SPECS
    for dtype in (torch.float32, torch.bfloat16)
    if (name, dtype) != ("deepseek2_odd_greedy", torch.bfloat16)
]
# Families whose prompts may be cut anywhere; the recurrent kernels of others work in blocks of
# tokens, which begin at multiples of 64 or of a divisor of it.
CUT_ANYWHERE = {"llama", "qwen3", "granite", "lfm2", "deepseek_v2", "deepseek_v3"}
GRID = 64
MANY_THREADS = 8
ANSWER = 24


def as_name(value: object) -> str:
    """Return the name of a case's value in pytest."""
    return str(value).removeprefix("torch.")


over_cases = pytest.mark.parametrize(("name", "dtype"), CASES, ids=as_name)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class Subject:
    """A tiny checkpoint on native kernels, and what asks it."""

    name: str
    config: EngineConfig
    model: Model
    rng: random.Random

    def prompt(self, length: int) -> tuple[int, ...]:
        vocab = self.model.config.vocab_size
        return tuple(self.rng.randrange(3, vocab) for _ in range(length))

    def request(self, name: str, prompt: tuple[int, ...]) -> RequestSpec:
        sampling = SamplingParams(
            temperature=1.0,
            top_p=0.95,
            seed=self.rng.randrange(1 << 32),
            max_tokens=ANSWER,
            ignore_eos=True,
            logprobs=5,
        )
        return RequestSpec(name, prompt, sampling)

    def engine(self, **options: object) -> Engine:
        config = replace(self.config, **options)  # type: ignore[arg-type]
        return poisoned(Engine(config, self.model, None))

    def alone(self, spec: RequestSpec) -> list[Event]:
        engine = self.engine(prefix_caching=False)
        engine.submit(spec)
        return run(engine)

    def drafting(self, known: list[tuple[int, ...]]) -> Engine:
        """An engine whose drafts are what follows in `known`, but for some tokens."""
        config = replace(
            self.config,
            chunked_prefill_size=4 * GRID,
            speculative_algorithm=SpeculativeAlgorithm.NGRAM,
            speculative_num_draft_tokens=4,
        )
        proposer = Known(known, 0.8, self.model.config.vocab_size, self.rng)
        return poisoned(Engine(config, self.model, None, proposers=Proposers(proposer)))


@pytest.fixture
def subject(oracle: Oracle, name: str, dtype: torch.dtype, seeded: random.Random) -> Subject:
    if library() is None:
        pytest.skip("no C++ compiler")
    config = EngineConfig(
        model=oracle.checkpoint(name),
        dtype=dtype,
        page_size=16,
        max_running=12,
        chunked_prefill_size=1024,
        max_model_len=1000,
        memory_bytes=1 << 28,
        cached_snapshots=24,
        snapshots_per_prefill=8,
        mamba_track_interval=GRID,
        tickets=2,
        held_fraction=1.0,
    )
    return Subject(name, config, load_model(config), seeded)


def poisoned(engine: Engine) -> Engine:
    """Fill the pools with NaN."""
    for pool in (engine.states, engine.pages):
        pool.storage.fill_(0xFF)
    return engine


def as_bytes(logits: torch.Tensor) -> bytes:
    return logits.numpy().tobytes()


def answer_of(events: list[Event], spec: RequestSpec) -> bytes:
    """The tokens of an answer with all log probabilities that it gives, as bytes."""
    mine = [e for e in events if isinstance(e, TokenSampled) and e.request_id == spec.request_id]
    assert [e.index for e in mine] == list(range(ANSWER))
    packed = b""
    for event in mine:
        said = event.logprob
        assert said is not None and len(said.top_ids) == 5
        packed += struct.pack("<6q", event.token_id, *said.top_ids)
        packed += struct.pack("<6d", said.logprob, *said.top_logprobs)
    return packed


def steps(driver: StepDriver, row: Row, others: list[Row]) -> bytes:
    """The logits of some steps of `row`, each beside one of each other row."""
    found = b""
    for step in range(4):
        for each in (*others, row):
            each.tokens.append(7 + 13 * step)
        found += as_bytes(driver.step(decode=[*others, row])[-1])
    return found


@over_cases
def test_logits_are_the_same_bits(subject: Subject) -> None:
    prompt, other = subject.prompt(100), subject.prompt(170)

    def whole() -> tuple[bytes, StepDriver, Row]:
        driver = StepDriver(subject.model)
        row = driver.start(prompt)
        return as_bytes(driver.prefill(row)), driver, row

    wanted, driver, row = whole()
    stepped = steps(driver, row, [])

    driver = StepDriver(subject.model)
    row, beside = driver.start(prompt), driver.start(other)
    assert as_bytes(driver.step(prefill=[(beside, 170), (row, 100)])[1]) == wanted, "beside"
    others = [beside]
    for length in (1, 16, 37, 64, 99, 100, 130):
        others.append(driver.start(subject.prompt(length)))
        driver.prefill(others[-1])
    assert steps(driver, row, others) == stepped, "steps among nine rows"

    cuts = [GRID]
    if SPECS[subject.name].family in CUT_ANYWHERE:
        cuts += [1, 37]
    for cut in cuts:
        driver = StepDriver(subject.model)
        row = driver.start(prompt)
        assert as_bytes(driver.prefill(row, cut)) == wanted, f"cut at multiples of {cut}"
        assert steps(driver, row, []) == stepped, f"steps behind cuts at multiples of {cut}"

    with threads(MANY_THREADS):
        found, driver, row = whole()
        assert found == wanted, "threads"
        assert steps(driver, row, []) == stepped, "steps of many threads"


@over_cases
def test_answers_are_the_same_bits_in_batches_and_windows(subject: Subject) -> None:
    rng = subject.rng
    lengths = [7, 100, 170, *(rng.randrange(200, 480) for _ in range(2))]
    specs = [subject.request(f"r{n}", subject.prompt(length)) for n, length in enumerate(lengths)]
    alone = [subject.alone(spec) for spec in specs]

    def check(engine: Engine, what: str) -> None:
        for spec in rng.sample(specs, len(specs)):
            engine.submit(spec)
        events = run(engine)
        for spec, wanted in zip(specs, alone, strict=True):
            assert answer_of(events, spec) == answer_of(wanted, spec), (what, spec.request_id)

    check(subject.engine(chunked_prefill_size=GRID), "in a batch, cut")
    drafting = subject.drafting(
        [
            (*spec.prompt_ids, *tokens_of(events, spec.request_id))
            for spec, events in zip(specs, alone, strict=True)
        ]
    )
    check(drafting, "in windows of drafts")
    accepted = drafting.counters.draft_tokens_accepted
    assert ANSWER < accepted < drafting.counters.draft_tokens


def preempted_in_its_prompt(subject: Subject, spec: RequestSpec) -> bytes:
    """Run `spec` beside an older request that needs pages before the prompt of `spec` is done."""
    page = 4
    older = subject.request("older", subject.prompt(6 * page - 1))
    engine = load(
        subject.config.model,
        6 + 3 + -(-len(spec.prompt_ids) // page),  # some to spare, which `older` soon takes
        dtype=subject.config.dtype,
        page_size=page,
        chunked_prefill_size=GRID,
    )
    engine.submit(older)
    events = step_until(engine, lambda new: any(isinstance(event, TokenSampled) for event in new))
    engine.submit(spec)
    events += step_until(engine, lambda _: engine.counters.preemptions)
    assert all(event.request_id != "long" for event in events if isinstance(event, TokenSampled))
    return answer_of(events + run(engine), spec)


@over_cases
def test_answers_are_the_same_bits_behind_a_snapshot_and_a_hand_over(subject: Subject) -> None:
    begin = subject.prompt(2 * GRID)
    first = subject.request("first", begin + subject.prompt(40))
    second = subject.request("second", begin + subject.prompt(90))
    wanted = answer_of(subject.alone(second), second)

    engine = subject.engine()
    engine.submit(first)
    run(engine)
    engine.submit(second)
    assert answer_of(run(engine), second) == wanted
    assert engine.counters.state_hit_tokens + engine.counters.kv_hit_tokens >= len(begin)

    if subject.model.config.attention:  # what has no pages is never preempted
        long = subject.request("long", subject.prompt(900))
        assert preempted_in_its_prompt(subject, long) == answer_of(subject.alone(long), long)

    source, target = subject.engine(chunked_prefill_size=GRID), subject.engine()
    source.submit(replace(second, hold=True))
    sampled = run(source)
    (token,) = [e for e in sampled if isinstance(e, TokenSampled)]
    hand_over(source, target, second, (token.token_id,))
    assert answer_of(sampled + run(target), second) == wanted
