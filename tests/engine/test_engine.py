"""One request's life: chunks, tokens, scores, its end, and what it leaves behind."""

import math
import random

import pytest
from engine.engines import assert_clean, finish_of, greedy, make_engine, random_prompt, run
from engine.engines import tokens_of as tokens
from engine.hash_model import EOS, VOCAB, HashModel, expected_tokens, hash_config, model_logits

from baton.core.finish import FinishReason
from baton.core.sampling_params import SamplingParams
from baton.engine.engine import Engine
from baton.engine.layout.owners import Owner
from baton.engine.request.events import PromptScored, Scheduled, TokenSampled
from baton.engine.request.request import RequestSpec


def assert_empty(engine: Engine) -> None:
    status = engine.status()
    assert status.slots[Owner.LIVE] == status.pages[Owner.LIVE] == 0
    assert (status.running, status.waiting, status.held) == (0, 0, 0)
    assert engine.step() == []


def test_the_tokens_are_those_of_the_definition(seeded: random.Random) -> None:
    engine = make_engine()
    prompt = random_prompt(seeded)
    engine.submit(RequestSpec("a", prompt, greedy(20)))
    events = run(engine)
    assert events[0] == Scheduled("a")
    assert tokens(events, "a") == expected_tokens(HashModel(), prompt, 20)
    finish = finish_of(events, "a")
    assert (finish.end.reason, finish.usage.prompt_tokens) == (FinishReason.LENGTH, len(prompt))
    assert finish.usage.completion_tokens == 20
    assert events[-1] is finish
    assert_empty(engine)


def test_given_output_is_never_sampled_again(seeded: random.Random) -> None:
    prompt = random_prompt(seeded)
    expected = expected_tokens(HashModel(), prompt, 20)
    engine = make_engine()
    engine.submit(RequestSpec("a", prompt, greedy(20), output_ids=tuple(expected[:7])))
    events = run(engine)
    sampled = [e for e in events if isinstance(e, TokenSampled)]
    assert [e.index for e in sampled] == list(range(7, 20))
    assert [e.token_id for e in sampled] == expected[7:]
    assert finish_of(events, "a").usage.completion_tokens == 20


def test_output_that_was_already_complete_ends_at_once(seeded: random.Random) -> None:
    prompt = random_prompt(seeded)
    engine = make_engine()
    engine.submit(RequestSpec("a", prompt, greedy(3), output_ids=(1, 2, 3)))
    (finish,) = engine.step()
    assert finish == finish_of([finish], "a") and finish.end.reason is FinishReason.LENGTH
    assert_empty(engine)


def test_a_request_for_no_tokens_computes_its_prompt_and_ends(seeded: random.Random) -> None:
    engine = make_engine()
    engine.submit(RequestSpec("a", random_prompt(seeded), greedy(0)))
    events = run(engine)
    assert not [e for e in events if isinstance(e, TokenSampled)]
    assert finish_of(events, "a").usage.completion_tokens == 0
    assert_empty(engine)


@pytest.mark.parametrize("chunk", [5, 16, 400])
def test_prompt_scores_are_the_raw_log_probabilities(seeded: random.Random, chunk: int) -> None:
    model = HashModel(hash_config(max_model_len=512))
    engine = make_engine(model, chunk=chunk)
    prompt = random_prompt(seeded, 280, 300)
    start = seeded.choice([0, 1, 17, len(prompt) - 1])
    asked = tuple(seeded.randrange(VOCAB) for _ in range(2))
    sampling = greedy(1, prompt_logprobs_start=start, prompt_logprobs=3, logprob_token_ids=asked)
    engine.submit(RequestSpec("a", prompt, sampling))
    scored = [e for e in run(engine) if isinstance(e, PromptScored)]
    assert scored[0].scores.start == start
    entries = [entry for e in scored for entry in e.scores.tokens]
    assert [entry.token_id for entry in entries] == list(prompt[start:])
    for position, entry in enumerate(entries, start):
        if position == 0:
            assert entry.logprob is None and entry.top_ids == ()
            continue
        expected = model_logits(model, list(prompt[:position])).log_softmax(0)
        assert entry.logprob == pytest.approx(float(expected[prompt[position]]), abs=1e-4)
        assert list(entry.top_ids) == expected.topk(3).indices.tolist()
        assert list(entry.top_logprobs) == pytest.approx(expected.topk(3).values.tolist(), abs=1e-4)
        others = [float(expected[token]) for token in asked]
        assert list(entry.asked_logprobs) == pytest.approx(others, abs=1e-4)


def test_logprobs_come_for_those_who_ask_and_as_many_as_they_ask(seeded: random.Random) -> None:
    model = HashModel()
    engine = make_engine(model)
    prompts = [random_prompt(seeded) for _ in range(3)]
    wanted = [None, 0, 5]
    for name, prompt, n in zip("abc", prompts, wanted, strict=True):
        asked = tuple(range(n or 0))
        engine.submit(RequestSpec(name, prompt, greedy(6, logprobs=n, logprob_token_ids=asked)))
    events = run(engine)
    for name, prompt, n in zip("abc", prompts, wanted, strict=True):
        mine = [e for e in events if isinstance(e, TokenSampled) and e.request_id == name]
        known = list(prompt)
        for event in mine:
            if n is None:
                assert event.logprob is None
                continue
            assert event.logprob is not None and len(event.logprob.top_ids) == n
            expected = model_logits(model, known).log_softmax(0)
            assert event.logprob.token_id == event.token_id
            assert event.logprob.logprob == pytest.approx(float(expected.max()), abs=1e-4)
            assert list(event.logprob.asked_logprobs) == pytest.approx(
                expected[:n].tolist(), abs=1e-4
            )
            known.append(event.token_id)


def test_eos_stops_unless_it_is_ignored_or_too_early(seeded: random.Random) -> None:
    model = HashModel()
    prompt, expected = _prompt_with_eos(seeded, model)
    at = expected.index(EOS)
    for name, sampling, count in (
        ("stops", SamplingParams(temperature=0, max_tokens=40), at + 1),
        ("ignored", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), 40),
    ):
        engine = make_engine(model)
        engine.submit(RequestSpec(name, prompt, sampling))
        events = run(engine)
        assert tokens(events, name) == expected[:count]
        finish = finish_of(events, name)
        stopped = name == "stops"
        assert finish.end.reason is (FinishReason.STOP if stopped else FinishReason.LENGTH)
        assert finish.end.stop_token_id == (EOS if stopped else None)
    engine = make_engine(model)
    late = SamplingParams(temperature=0, max_tokens=40, min_tokens=at + 5)
    engine.submit(RequestSpec("late", prompt, late))
    got = tokens(run(engine), "late")
    assert EOS not in got[: at + 5] and got[:at] == expected[:at]


def test_a_stop_token_of_the_request_ends_it_and_is_reported(seeded: random.Random) -> None:
    prompt = random_prompt(seeded)
    expected = expected_tokens(HashModel(), prompt, 20)
    stop = expected[9]
    engine = make_engine()
    engine.submit(RequestSpec("a", prompt, greedy(20, stop_token_ids=(stop,))))
    events = run(engine)
    assert tokens(events, "a") == expected[: expected.index(stop) + 1]
    assert finish_of(events, "a").end.stop_token_id == stop


def test_the_context_ends_a_request_that_asks_for_more(seeded: random.Random) -> None:
    engine = make_engine(HashModel(hash_config(max_model_len=64)))
    prompt = random_prompt(seeded, 50, 60)
    engine.submit(RequestSpec("a", prompt, greedy(1000)))
    events = run(engine)
    assert len(tokens(events, "a")) == 64 - len(prompt)
    assert finish_of(events, "a").end.reason is FinishReason.LENGTH


def test_a_cancelled_request_ends_with_its_reason_at_any_stage(seeded: random.Random) -> None:
    for steps in range(8):
        engine = make_engine(chunk=16)
        engine.submit(RequestSpec("a", random_prompt(seeded, 40, 60), greedy(30)))
        for _ in range(steps):
            engine.step()
        engine.cancel("a", "the client went away")
        engine.cancel("a", "twice does no harm")
        assert_clean(engine)
        (finish,) = engine.step()
        assert finish_of([finish], "a").end.reason is FinishReason.ABORT
        assert finish_of([finish], "a").error == "the client went away"
        assert_empty(engine)
    engine.cancel("nobody", "unknown")


def test_generate_answers_in_the_prompts_order(seeded: random.Random) -> None:
    engine = make_engine()
    prompts = [random_prompt(seeded) for _ in range(7)]
    sampling = [greedy(seeded.randint(1, 15)) for _ in prompts]
    outputs = engine.generate(prompts, sampling)
    for output, prompt, params in zip(outputs, prompts, sampling, strict=True):
        assert list(output.token_ids) == expected_tokens(HashModel(), prompt, params.max_tokens)
    assert len(engine.generate([prompts[0], prompts[0]], greedy(2))) == 2
    assert_empty(engine)


def test_status_counts_what_is_there(seeded: random.Random) -> None:
    engine = make_engine(max_running=2, pages=50)
    for name in "abc":
        engine.submit(RequestSpec(name, random_prompt(seeded, 9, 16), greedy(30)))
    for _ in range(3):
        engine.step()
    status = engine.status()
    assert (status.running, status.waiting, status.held) == (2, 1, 0)
    assert status.slots[Owner.LIVE] == 2
    assert sum(status.slots.values()) == engine.plan.slots - 1
    # A request's whole pages may be the prefix cache's already.
    assert status.pages[Owner.LIVE] + status.pages[Owner.CACHE] >= 4
    assert sum(status.pages.values()) == 50
    assert (status.max_running, status.max_model_len) == (2, 400)


def _prompt_with_eos(rng: random.Random, model: HashModel) -> tuple[tuple[int, ...], list[int]]:
    """A prompt whose continuation has its first EOS somewhere in 3 .. 29 of 40 tokens."""
    for _ in range(math.ceil(VOCAB * 20)):
        prompt = random_prompt(rng, 3, 10)
        expected = expected_tokens(model, prompt, 40)
        if EOS in expected[3:30] and EOS not in expected[:3]:
            return prompt, expected
    raise AssertionError("no prompt found whose continuation has an end of sequence")
