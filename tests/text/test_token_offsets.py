"""The character at which each token begins: against the tokenizer library's own offsets, and by
properties that hold for any ids."""

from itertools import pairwise

import pytest
import toy_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers, processors

from baton.text.special_tokens import SpecialTokens
from baton.text.token_offsets import make_token_offsets, offsets_in, text_after
from baton.text.tokenizer import Tokenizer

TEXT = "héllo wörld €5 日本語 😀👩‍👩‍👧 STOP  the baton"


def trimming() -> Backend:
    """Llama-3's kind: a byte-level post-processor that leaves spaces out of the offsets."""
    backend = toy_tokenizer.byte_level()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend


def metaspace(scheme: str) -> Backend:
    """Sentencepiece's kind as newer files spell it: marks before words, in front or not."""
    backend = toy_tokenizer.byte_fallback()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if scheme == "first" else []),
        ]
    )
    return backend


KINDS = {
    "byte_level": toy_tokenizer.byte_level(),
    "byte_level_in_a_sequence": toy_tokenizer.decoded_in_sequence(),
    "byte_level_that_trims": trimming(),
    "byte_fallback": toy_tokenizer.byte_fallback(),
    "metaspace_with_a_prefix": metaspace("first"),
    "metaspace_without": metaspace("never"),
    "word_piece": toy_tokenizer.word_piece(),
}
TOKENIZERS = {name: Tokenizer(backend, SpecialTokens()) for name, backend in KINDS.items()}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)
whole_kinds = pytest.mark.parametrize("kind", [k for k in TOKENIZERS if k != "word_piece"])


def offsets(
    tokenizer: Tokenizer, groups: list[list[int]], skip: bool = True, after: int | None = None
) -> list[int]:
    counter = make_token_offsets(tokenizer, skip, after)
    return [offset for group in groups for offset in counter.push(group)] + counter.finish()


@whole_kinds
def test_offsets_of_a_texts_ids_are_those_of_the_tokenizer_library(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    found = offsets(tokenizer, [[i] for i in ids])
    assert found == offsets_in(tokenizer.spans(TEXT))
    if kind != "byte_level_that_trims":  # whose offsets leave out the space before a word
        assert found == [begin for begin, _ in KINDS[kind].encode(TEXT).offsets]
    assert any(a == b for a, b in pairwise(found)), "no character is split"


@kinds
def test_spaces_between_the_librarys_tokens_belong_to_the_token_after_them(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    found = offsets_in(tokenizer.spans(TEXT))
    ends = [*found[1:], len(TEXT)]
    assert "".join(TEXT[a:b] for a, b in zip(found, ends, strict=True)) == TEXT


def test_tokens_that_the_tokenizer_adds_take_no_text() -> None:
    assert offsets_in([(0, 0), (0, 2), (3, 5), (0, 0)]) == [0, 0, 2, 5]


@kinds
@given(data=st.data())
def test_any_ids_in_any_grouping_begin_where_their_text_does(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=40))
    skip = data.draw(st.booleans())
    size = data.draw(st.integers(1, 5))
    found = offsets(tokenizer, [ids[i : i + size] for i in range(0, len(ids), size)], skip)
    text = tokenizer.decode(ids, skip)
    assert found == offsets(tokenizer, [ids], skip)
    assert len(found) == len(ids)
    assert found == sorted(found) and all(0 <= offset <= len(text) for offset in found)
    for k, (token, offset) in enumerate(zip(ids, found, strict=True)):
        if not tokenizer.with_text([token], skip):
            continue
        before = tokenizer.decode(ids[:k], skip)
        in_character = token in tokenizer.byte_ids or tokenizer.is_byte_level
        if not in_character:
            assert text[:offset] == before
        elif tokenizer.is_byte_level and not before.endswith("\ufffd"):
            assert text[:offset] == before  # it begins a character
        elif offset < len(text) and tokenizer.decode(ids[: k + 1], skip) != before:
            # A decoder may remove a text's first space; then it has no character.
            byte = tokenizer_byte(tokenizer, token)
            assert text[offset] == "\ufffd" or byte in text[offset].encode()


def tokenizer_byte(tokenizer: Tokenizer, token: int) -> int:
    """Return the first byte of a token's spelling."""
    if token in tokenizer.byte_ids:
        return int(str(tokenizer.piece(token))[3:5], 16)
    table = tokenizer.spelling(skip_special_tokens=False)
    assert table is not None
    return table[token][0]


def test_an_offset_within_a_run_of_bytes_waits_for_the_runs_end() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    token_of = {int(str(tokenizer.piece(i))[3:5], 16): i for i in tokenizer.byte_ids}
    whole, broken = [token_of[b] for b in "é".encode()], [token_of[0xC3], token_of[0x41]]
    word = next(i for i in range(tokenizer.vocab_size) if tokenizer.piece(i) == "w")
    counter = make_token_offsets(tokenizer)
    assert counter.push([word, *whole]) == [0]
    assert counter.push([word]) == [1, 1, 2]
    assert counter.push(broken) == []
    assert counter.finish() == [3, 4]  # a replacement character each


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace_with_a_prefix", "word_piece"])
def test_a_continuation_counts_the_space_that_a_texts_first_token_loses(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    text = "hello world hello world"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    for cut in range(1, len(ids)):
        begun = len(tokenizer.decode(ids[:cut]))
        counted = offsets(tokenizer, [ids[cut:]], after=ids[cut - 1])
        assert [begun + offset for offset in counted] == offsets(tokenizer, [ids])[cut:]
        assert text[begun:].startswith(text_after(tokenizer, ids[cut - 1], ids[cut]))
