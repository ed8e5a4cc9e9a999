"""Stop strings and stop tokens: where the output ends and what is cut from its text."""

import random
from pathlib import Path

import pytest
from engine.engines import finish_of, greedy, make_engine, run, tokens_of
from engine.hash_model import HashModel, expected_tokens
from toy_tokenizer import byte_level

from baton.core.errors import RequestError
from baton.core.finish import FinishReason
from baton.core.grammar import Grammar, GrammarKind
from baton.core.sampling_params import SamplingParams
from baton.engine.request.events import RequestFinished
from baton.engine.request.request import RequestSpec
from baton.engine.request.stop_checker import StopChecker
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

COUNT = 24


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level(), SpecialTokens())


def readable(rng: random.Random, tokenizer: Tokenizer) -> tuple[tuple[int, ...], list[int], str]:
    """A prompt whose continuation is text without broken characters or hidden tokens."""
    for _ in range(2000):
        prompt = tuple(rng.randrange(97) for _ in range(4))
        expected = expected_tokens(HashModel(), prompt, COUNT)
        text = tokenizer.decode(expected)
        if "\ufffd" not in text and len(text) == COUNT:
            return prompt, expected, text
    raise AssertionError("no readable continuation found")


def answer(
    tokenizer: Tokenizer, prompt: tuple[int, ...], sampling: SamplingParams
) -> tuple[list[int], RequestFinished]:
    engine = make_engine(tokenizer=tokenizer)
    engine.submit(RequestSpec("a", prompt, sampling))
    events = run(engine)
    return tokens_of(events, "a"), finish_of(events, "a")


def test_a_stop_string_ends_the_text_before_it(seeded: random.Random, tokenizer: Tokenizer) -> None:
    prompt, expected, text = readable(seeded, tokenizer)
    start = seeded.randrange(3, COUNT - 4)
    stop = text[start : start + 3]
    where = text.index(stop)
    tokens, finish = answer(tokenizer, prompt, greedy(COUNT, stop=(stop, "never there")))
    assert tokens == expected[: where + 3]
    assert (finish.end.reason, finish.end.stop_string) == (FinishReason.STOP, stop)
    got = tokenizer.decode(tokens)
    assert got[: len(got) - finish.end.cut_chars] == text[:where]


def test_a_stop_string_stays_where_it_is_to_be_included(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    prompt, _, text = readable(seeded, tokenizer)
    stop = text[5:8]
    tokens, finish = answer(tokenizer, prompt, greedy(COUNT, stop=(stop,), include_stop=True))
    assert finish.end.cut_chars == 0 and tokenizer.decode(tokens).endswith(stop)


def test_a_stop_string_does_not_count_before_the_minimum(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    prompt, expected, text = readable(seeded, tokenizer)
    sampling = greedy(COUNT, stop=(text[2:4],), min_tokens=COUNT)
    tokens, finish = answer(tokenizer, prompt, sampling)
    assert tokens == expected and finish.end.reason is FinishReason.LENGTH


def test_a_visible_stop_token_is_cut_from_the_text(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    prompt, expected, _ = readable(seeded, tokenizer)
    stop = expected[10]
    where = expected.index(stop)
    for include in (False, True):
        sampling = greedy(COUNT, stop_token_ids=(stop,), include_stop=include)
        tokens, finish = answer(tokenizer, prompt, sampling)
        assert tokens == expected[: where + 1] and finish.end.stop_token_id == stop
        assert finish.end.cut_chars == (0 if include else 1)


def test_output_that_is_given_counts_for_a_stop_string(
    seeded: random.Random, tokenizer: Tokenizer
) -> None:
    prompt, expected, text = readable(seeded, tokenizer)
    stop = text[8:11]
    where = text.index(stop)
    engine = make_engine(tokenizer=tokenizer)
    given = tuple(expected[: where + 1])
    engine.submit(RequestSpec("a", prompt, greedy(COUNT, stop=(stop,)), output_ids=given))
    finish = finish_of(run(engine), "a")
    assert (finish.usage.completion_tokens, finish.end.stop_string) == (where + 3, stop)


class Whole(list[int]):
    """A list that refuses to be sliced: a migrated answer may be long, and must not be copied again
    for every token."""

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        assert not isinstance(index, slice), "one copy a token is quadratic"
        return super().__getitem__(index)


def test_a_long_output_that_is_given_is_read_once(tokenizer: Tokenizer) -> None:
    sampling = greedy(3000, stop=("never said",), stop_token_ids=(200,))
    checker = StopChecker(sampling, 3000, frozenset({200}), tokenizer)
    assert checker.replay(Whole([1, 2, 3] * 900)) is None
    stop = StopChecker(sampling, 2700, frozenset({200}), tokenizer).replay(Whole([1, 2, 3] * 900))
    assert stop is not None and stop.reason is FinishReason.LENGTH


def test_a_given_stop_token_below_the_minimum_does_not_count() -> None:
    engine = make_engine()
    sampling = greedy(6, stop_token_ids=(9,), min_tokens=6)
    engine.submit(RequestSpec("a", (1, 2), sampling, output_ids=(9, 3)))
    assert finish_of(run(engine), "a").usage.completion_tokens == 6


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(RequestError, match="tokenizer"):
        make_engine().submit(RequestSpec("a", (1,), greedy(stop=("x",))))


def ends_turns_with(folder: Path, token: str) -> Tokenizer:
    """Return a tokenizer whose chat template alone says what ends an answer."""
    byte_level().save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}" + token + "{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return Tokenizer.from_folder(folder)


def test_an_answer_ends_where_the_chat_template_ends_a_turn(tmp_path: Path) -> None:
    tokenizer = ends_turns_with(tmp_path, "<|system|>")
    (end,) = tokenizer.stop_ids
    rng = random.Random(7)
    prompts = (tuple(rng.randrange(97) for _ in range(4)) for _ in range(2000))
    answers = ((each, expected_tokens(HashModel(), each, COUNT)) for each in prompts)
    prompt, expected = next((p, tokens) for p, tokens in answers if end in tokens[2:])
    at = expected.index(end)
    tokens, finish = answer(tokenizer, prompt, SamplingParams(temperature=0.0, max_tokens=COUNT))
    assert tokens == expected[: at + 1]
    assert finish.end.reason is FinishReason.STOP and finish.end.stop_token_id == end
    tokens, _ = answer(tokenizer, prompt, greedy(COUNT))
    assert tokens == expected


def test_a_form_may_end_where_the_chat_template_ends_a_turn(tmp_path: Path) -> None:
    tokenizer = ends_turns_with(tmp_path, "<|system|>")
    (end,) = tokenizer.stop_ids
    letters = Grammar(GrammarKind.REGEX, "[a-z]+")
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, grammar=letters)
    found = [answer(tokenizer, (1, number), sampling) for number in range(20)]
    ends = {*HashModel().config.eos_token_ids, end}
    assert {finish.end.stop_token_id for _, finish in found} == {*ends, None}
    for tokens, finish in found:
        stopped = finish.end.stop_token_id is not None
        assert tokenizer.decode(tokens[:-1] if stopped else tokens).isalpha()


def test_an_end_beyond_the_vocabulary_is_named(caplog: pytest.LogCaptureFixture) -> None:
    special = SpecialTokens(configured_stop_ids=frozenset({5, 97, 300_000}))
    make_engine(HashModel(), tokenizer=Tokenizer(byte_level(), special))
    (line,) = (r.getMessage() for r in caplog.records if "eos_token_id" in r.getMessage())
    assert "has 97, 300000," in line and "97 tokens" in line
    caplog.clear()
    make_engine(HashModel(), tokenizer=Tokenizer(byte_level(), SpecialTokens()))
    assert "eos_token_id" not in caplog.text
