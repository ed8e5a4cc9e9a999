"""Acceptance that is drawn: its mean, the answers that it makes, and what it is refused beside."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.engines import assert_clean, tokens_of
from engine.test_mtp_drafts import (
    Guessed,
    answered,
    guessed,
    options,
    poisoned,
    random_prompt,
    with_mtp,
)
from engine.test_oracle import load
from mtp_models import MtpCheckpoints

from baton.core.errors import ConfigError, RequestError
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import RequestSpec
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.engine.speculation.synthetic import SyntheticAcceptance, chance_of
from baton.worker.model_identity import worker_fingerprint

NAME = "qwen3_next_moe"
TOKENS = 120

__all__ = ["guessed"]  # a fixture


@pytest.fixture
def folder(mtp_checkpoints: MtpCheckpoints) -> Path:
    return mtp_checkpoints.folder(NAME)


def drawing(config: EngineConfig, length: float) -> EngineConfig:
    drafting = with_mtp(config)
    return replace(drafting, canary=False, speculative_synthetic_acceptance=length)


def specs_of(rng: random.Random, sampling: SamplingParams) -> list[RequestSpec]:
    each = (replace(sampling, seed=number) for number in range(6))
    return [RequestSpec(f"r{n}", random_prompt(rng, 30), one) for n, one in enumerate(each)]


def length_of(engine: Engine) -> float:
    """Tokens that a row with drafts gave its answer, on average."""
    return 1 + engine.counters.draft_tokens_accepted / engine.counters.draft_rows


@pytest.mark.parametrize(("drafts", "length"), [(1, 1.7), (3, 1.0), (3, 2.6), (3, 4.0), (7, 5.5)])
def test_the_mean_is_the_length_that_was_asked_for(drafts: int, length: float) -> None:
    acceptance = SyntheticAcceptance(length, drafts, torch.device("cpu"))
    real = torch.ones((40000, drafts), dtype=torch.bool)
    kept = acceptance.draw(real)
    assert 1 + float(kept.sum(1).float().mean()) == pytest.approx(length, abs=0.06)
    assert bool((kept[:, 1:] <= kept[:, :-1]).all())  # none behind one that was not
    real[:, drafts // 2 :] = False
    assert not bool((acceptance.draw(real) & ~real).any())
    assert chance_of(1.0, drafts) < 1e-9 and chance_of(drafts + 1, drafts) == pytest.approx(1.0)


@pytest.mark.parametrize("length", [1.0, 2.5, 4.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_the_answer(
    folder: Path, guessed: Guessed, seeded: random.Random, length: float, temperature: float
) -> None:
    """Every accepted draft is a token of the answer, at its place, with the answer's length."""
    sampling = SamplingParams(
        temperature=temperature,
        max_tokens=TOKENS,
        ignore_eos=True,
        frequency_penalty=0.1,
        logprobs=2,
    )
    specs = specs_of(seeded, sampling)
    engine = poisoned(drawing(options(folder), length))
    events = answered(engine, specs)
    assert_clean(engine)
    assert length_of(engine) == pytest.approx(length, abs=0.35 * (1 < length < 4) + 0.05)
    plain = answered(poisoned(replace(options(folder), canary=False)), specs)
    same = 0
    for spec in specs:
        answer = tokens_of(events, spec.request_id)
        assert len(answer) == TOKENS
        same += answer == tokens_of(plain, spec.request_id)
    assert same == (len(specs) if length == 1.0 else 0)
    texts = [(*spec.prompt_ids, *tokens_of(events, spec.request_id)) for spec in specs]
    follow = [
        text[len(known)] == drafts[0]
        for text in texts
        for known, drafts in guessed.items()
        if text[: len(known)] == known and len(known) < len(text)
    ]
    assert len(follow) > 100
    if length == 4.0:
        assert all(follow)


def test_states_are_those_of_the_text_that_came_out(folder: Path, seeded: random.Random) -> None:
    """A plain engine that reads the text goes on as one that goes on from the cached state."""
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    engine = poisoned(drawing(options(folder), 3.0))
    specs = specs_of(seeded, sampling)
    events = answered(engine, specs)
    again = [
        replace(spec, request_id=f"{spec.request_id}-again",
                prompt_ids=(*spec.prompt_ids, *tokens_of(events, spec.request_id)),
                sampling=replace(sampling, max_tokens=1))
        for spec in specs
    ]  # fmt: skip
    before = engine.counters.state_hit_tokens
    cached = answered(engine, again)
    assert engine.counters.state_hit_tokens > before
    cold = answered(poisoned(replace(options(folder), canary=False)), again)
    for spec in again:
        assert tokens_of(cached, spec.request_id) == tokens_of(cold, spec.request_id)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"canary": True}, "canary is for those that are"),
        ({"speculative_ngram_capacity": 4096}, "speculative_ngram_capacity is for"),
        ({"speculative_synthetic_acceptance": 4.5}, "must be 1 to 4, .* got 4.5"),
        (
            {"mtp": False, "speculative_algorithm": SpeculativeAlgorithm.NGRAM},
            "use speculative_algorithm mtp",
        ),
        (
            {"mtp": None, "speculative_algorithm": SpeculativeAlgorithm.AUTO},
            "use speculative_algorithm mtp",
        ),
        (
            {"mtp": False, "speculative_algorithm": SpeculativeAlgorithm.OFF},
            "use speculative_algorithm mtp",
        ),
    ],
)
def test_options_that_are_for_right_answers_are_refused(
    folder: Path, more: dict[str, object], says: str
) -> None:
    config = replace(drawing(options(folder), 2.0), **more)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        Engine.load(config)


@pytest.mark.parametrize("prompts", [False, True], ids=["answers", "prompts"])
def test_rules_are_refused_by_both_roles(folder: Path, prompts: bool) -> None:
    config = drawing(options(folder), 2.0)
    engine = Engine.load(config.for_prompts if prompts else config)
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    for name, more in (
        ("grammar", {"grammar": Grammar(GrammarKind.REGEX, "[ab]+")}),
        ("bad_words", {"bad_words": ("ab",)}),
    ):
        ruled = replace(sampling, **more)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match=f"{name} is refused here") as refused:
            engine.submit(RequestSpec(name, (5, 6, 7), ruled))
        assert refused.value.field == name
    allowed = replace(sampling, allowed_token_ids=(5, 6), ignore_eos=True)
    engine.submit(RequestSpec("allowed", (5, 6, 7), allowed))


def test_allowed_tokens_and_least_lengths_hold(folder: Path, seeded: random.Random) -> None:
    sampling = SamplingParams(
        temperature=1.0,
        allowed_token_ids=(5, 6, 7),
        stop_token_ids=(6,),
        min_tokens=20,
        max_tokens=60,
    )
    specs = specs_of(seeded, sampling)
    events = answered(poisoned(drawing(options(folder), 3.0)), specs)
    for spec in specs:
        answer = tokens_of(events, spec.request_id)
        assert {*answer} <= {5, 6, 7}
        assert 6 not in answer[:20] and len(answer) >= 20


def fingerprint_of(engine: Engine) -> dict[str, str]:
    class Layouts:
        slots, pages = engine.plan.slot_layout, engine.plan.page_layout

    return worker_fingerprint(engine.config, engine.plan.model_config, Layouts)  # type: ignore[arg-type]


def test_the_fingerprint_keeps_such_workers_from_others(folder: Path) -> None:
    config = drawing(options(folder), 2.5)
    drawn, prompts, plain = (
        fingerprint_of(Engine.load(each))
        for each in (config, config.for_prompts, with_mtp(options(folder)))
    )
    assert drawn == prompts == plain | {"synthetic_acceptance": "2.5"}


def test_predictions_are_not_drafts_then(folder: Path) -> None:
    engine = load(
        folder,
        mtp=True,
        speculative_algorithm=SpeculativeAlgorithm.MTP,
        speculative_synthetic_acceptance=3.0,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    spec = RequestSpec("r", tuple(range(5, 25)), sampling, prediction_ids=tuple(range(30, 60)))
    events: Sequence[object] = answered(engine, [spec])
    answer = tokens_of(list(events), "r")  # type: ignore[arg-type]
    assert not {*range(30, 60)} <= {*answer}
    proposed = [sum(counts) for counts in engine.counters.proposed_depths]
    assert sum(map(bool, proposed)) == 1
