"""The tokens that an answer may have next."""

from pathlib import Path

import pytest
import toy_tokenizer

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.grammar import GrammarCompiler
from baton.text.token_rules import TokenRules, banned_sequences, words_of
from baton.text.tokenizer import Tokenizer

SIZE = 130
WORDS = words_of(SIZE)


def allowed(rules: TokenRules) -> set[int]:
    mask = rules.allowed()
    return {i for i in range(SIZE) if mask[i // 64] >> i % 64 & 1}


def test_only_allowed_tokens_come_and_no_word_of_one_token() -> None:
    assert allowed(TokenRules(None, WORDS, allowed_ids=[3, 63, 64, 129])) == {3, 63, 64, 129}
    rules = TokenRules(None, WORDS, allowed_ids=[3, 64, 129], banned=[(64,), (63,), (500,)])
    assert allowed(rules) == {3, 129}
    assert not rules.follows, "one mask serves the whole answer"
    every = set(range(SIZE))
    assert allowed(TokenRules(None, WORDS, banned=[(0,), (63,), (64,)])) == every - {0, 63, 64}


def test_a_longer_word_loses_its_last_token_only_after_the_others() -> None:
    rules = TokenRules(None, WORDS, banned=[(1, 2, 3), (2, 4)], given=(9, 1))
    assert rules.follows and {2, 3, 4} <= allowed(rules)
    rules.push(2)
    assert not {3, 4} & allowed(rules) and {1, 2} <= allowed(rules)
    rules.push(2)
    assert 4 not in allowed(rules) and 3 in allowed(rules)
    rules.push(5)
    assert {3, 4} <= allowed(rules)


def test_an_answer_resumes_with_the_rules_that_it_had() -> None:
    output = [1, 2, 1, 2, 3, 1, 1, 2]
    whole = TokenRules(None, WORDS, banned=[(1, 2, 1), (2, 3)])
    for count in range(len(output)):
        resumed = TokenRules(None, WORDS, banned=[(1, 2, 1), (2, 3)], given=output[:count])
        assert resumed.allowed() == whole.allowed()
        whole.push(output[count])


def test_end_tokens_wait_for_the_minimum() -> None:
    rules = TokenRules(None, WORDS, allowed_ids=[5, 6], end_ids=[6, 7], min_tokens=2)
    assert allowed(rules) == {5}
    rules.push(5)
    assert allowed(rules) == {5}
    rules.push(5)
    assert allowed(rules) == {5, 6} and not rules.follows


@pytest.mark.parametrize(
    "rules",
    [
        {"allowed_ids": [5], "banned": [(5,)]},
        {"allowed_ids": [5], "end_ids": [5], "min_tokens": 1},
        {"allowed_ids": [5], "banned": [(5, 5)], "given": (5,)},
    ],
)
def test_no_token_at_all_is_an_error(rules: dict[str, list[int]]) -> None:
    with pytest.raises(GrammarError, match="leave no token"):
        TokenRules(None, WORDS, **rules).allowed()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "word_piece"])
def test_banned_words_are_spelt_at_the_start_after_a_space_and_within(
    kind: str, tmp_path: Path
) -> None:
    made = getattr(toy_tokenizer, kind)()
    tokenizer = Tokenizer.from_folder(toy_tokenizer.save_folder(tmp_path, made))
    sequences = banned_sequences(tokenizer, ["hello"])
    spelt = {tokenizer.decode(ids).strip() for ids in sequences}
    assert spelt == {"hello"}
    for text in ("hello", "the hello"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert any(tuple(ids[-len(each) :]) == each for each in sequences), text


def test_a_grammar_and_banned_words_hold_together(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(toy_tokenizer.save_folder(tmp_path))
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    compiled = compiler.compile(Grammar(GrammarKind.REGEX, "[ab]c"))
    (a,), (b,) = (tokenizer.encode(each, add_special_tokens=False) for each in "ab")
    words = words_of(tokenizer.vocab_size)
    rules = TokenRules(compiled.start(), words, banned=[(a,)])
    mask = rules.allowed()
    assert {i for i in (a, b) if mask[i // 64] >> i % 64 & 1} == {b}
    rules.push(b)
    (c,) = tokenizer.encode("c", add_special_tokens=False)
    assert not rules.ended and rules.allowed()[c // 64] >> c % 64 & 1
