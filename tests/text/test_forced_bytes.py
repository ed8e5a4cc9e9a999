"""Grammars over vocabularies that lack tokens for some bytes."""

import json
import random
from pathlib import Path

import pytest
import toy_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.forced_bytes import ForcedBytes
from baton.text.grammar import GrammarCompiler, GrammarState
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
END = 0
QUOTED = json.dumps({"type": "string"})
STRINGS = json.dumps({"type": "array", "items": {"type": "string"}, "minItems": 2})
NAMES = json.dumps({"enum": ["ada", "bob"]})


def compiler_of(*words: str) -> GrammarCompiler:
    """Return a compiler for a vocabulary of these words alone."""
    vocab = {word: i for i, word in enumerate(["<end>", *words])}
    backend = Backend(models.WordLevel(vocab, unk_token="<end>"))
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend, SpecialTokens())
    return GrammarCompiler(tokenizer, len(vocab), {END})


def ids(state: GrammarState) -> list[int]:
    return [
        64 * at + bit
        for at, word in enumerate(state.allowed())
        for bit in range(64)
        if word >> bit & 1
    ]


def accepts(state: GrammarState, token: int) -> bool:
    fork = state.fork()
    try:
        fork.push(token)
    except GrammarError:
        return False
    return True


@pytest.mark.parametrize("schema", [QUOTED, STRINGS, NAMES, '{"type": "object"}'])
def test_json_is_refused_by_a_model_without_quotes(schema: str) -> None:
    tokenizer = Tokenizer.from_folder(ROOT / "examples/recall/model")
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)
    with pytest.raises(GrammarError, match="no token of this model"):
        compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, schema))


def test_a_quote_that_is_missing_further_on_is_missed_too() -> None:
    with pytest.raises(GrammarError, match='ab"c must come'):
        compiler_of("a", "b", "c").compile(Grammar(GrammarKind.REGEX, 'ab"c'))


def test_a_longer_token_may_bring_the_byte_that_is_no_token() -> None:
    state = compiler_of("a", '"a', 'b"').compile(Grammar(GrammarKind.JSON_SCHEMA, QUOTED)).start()
    assert ids(state) == [2]
    state.push(2)
    assert set(ids(state)) == {1, 3}


def test_an_answer_that_meets_the_missing_byte_cannot_go_on() -> None:
    state = compiler_of("a", "b").compile(Grammar(GrammarKind.REGEX, '(a|b)("x"|"y")')).start()
    state.push(ids(state)[0])
    for _ in range(2):
        with pytest.raises(GrammarError, match="cannot go on"):
            state.allowed()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_mask_lets_through_may_be_pushed(seed: int) -> None:
    rng = random.Random(seed)
    letters = 'abcdefx"[]{},:1'
    words = {"".join(rng.choices(letters, k=rng.choice([1, 1, 2, 3]))) for _ in range(30)}
    compiler = compiler_of(*sorted(words))
    for kind, text in [
        (GrammarKind.JSON_SCHEMA, QUOTED),
        (GrammarKind.JSON_SCHEMA, STRINGS),
        (GrammarKind.JSON_SCHEMA, NAMES),
        (GrammarKind.REGEX, '[a-c]{2}"[a-z]+"'),
    ]:
        try:
            state = compiler.compile(Grammar(kind, text)).start()
            for _ in range(8):
                if state.ended:
                    break
                allowed = ids(state)
                assert all(accepts(state, token) for token in allowed), (text, sorted(words))
                state.push(rng.choice(allowed))
        except GrammarError as error:
            assert "no token of this model" in str(error)


def test_vocabularies_with_all_bytes_need_no_correction() -> None:
    full = Tokenizer(toy_tokenizer.byte_level(), SpecialTokens())
    compiler = GrammarCompiler(full, full.vocab_size, {1})
    state = compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, QUOTED)).start()
    assert ids(state)
    assert ForcedBytes([bytes([byte]) for byte in range(256)]).complete
    assert not ForcedBytes([bytes([byte]) for byte in range(255)]).complete


def test_bytes_are_spelt_by_tokens_of_any_length() -> None:
    words = ForcedBytes([b"", b"ab", b"a", b"bc", b"cde"])
    assert words.spells(b"") and words.spells(b"abc") and words.spells(b"abcd")
    assert not words.spells(b"abd") and words.spells(b"b")
    assert not words.spells(b"x")
