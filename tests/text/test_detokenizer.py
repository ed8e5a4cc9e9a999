"""The incremental detokeniser against one decode of everything."""

import pytest
import toy_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from baton.text.detokenizer import ByteDetokenizer, WindowDetokenizer, make_detokenizer
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

KINDS = {
    "byte_level": Tokenizer(toy_tokenizer.byte_level(), SpecialTokens()),
    "byte_level_in_a_sequence": Tokenizer(toy_tokenizer.decoded_in_sequence(), SpecialTokens()),
    "byte_fallback": Tokenizer(toy_tokenizer.byte_fallback(), SpecialTokens()),
    "word_piece": Tokenizer(toy_tokenizer.word_piece(), SpecialTokens()),
}
kinds = pytest.mark.parametrize("kind", KINDS)
TEXT = "héllo wörld €5 日本語 😀👩‍👩‍👧 STOP the baton"


def some_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    # Three ids past the vocabulary: models pad theirs, and may sample there.
    return st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=60)


def streamed(tokenizer: Tokenizer, groups: list[list[int]], skip: bool = True) -> list[str]:
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(group) for group in groups), detokenizer.finish()]


@kinds
@given(data=st.data())
def test_the_pieces_of_any_ids_in_any_grouping_join_to_one_decode(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = KINDS[kind]
    ids = data.draw(some_ids(tokenizer))
    skip = data.draw(st.booleans())
    groups, rest = [], ids
    while rest:
        size = data.draw(st.integers(1, 5))
        groups.append(rest[:size])
        rest = rest[size:]
    assert "".join(streamed(tokenizer, groups, skip)) == tokenizer.decode(ids, skip)


@kinds
@given(data=st.data())
def test_what_was_shown_depends_on_the_ids_and_not_on_their_grouping(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = KINDS[kind]
    ids = data.draw(some_ids(tokenizer))
    one_by_one = make_detokenizer(tokenizer)
    rebuilt = make_detokenizer(tokenizer)
    assert "".join(one_by_one.push([i]) for i in ids) == rebuilt.push(ids)


@kinds
def test_whole_characters_come_out_of_valid_text(kind: str) -> None:
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(TEXT)
    pieces = streamed(tokenizer, [[i] for i in ids])
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_a_character_of_several_tokens_comes_out_with_its_last_token() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("👩")
    assert len(ids) > 1
    *early, last, end = streamed(tokenizer, [[i] for i in ids])
    assert (early, last, end) == ([""] * len(early), "👩", "")


def test_a_real_replacement_character_is_shown() -> None:
    tokenizer = KINDS["byte_level"]
    assert "".join(streamed(tokenizer, [tokenizer.encode("a\ufffdb")])) == "a\ufffdb"


def test_byte_level_text_is_looked_up_and_other_text_is_decoded() -> None:
    made = {kind: type(make_detokenizer(tokenizer)) for kind, tokenizer in KINDS.items()}
    assert made.pop("byte_level") is ByteDetokenizer
    assert set(made.values()) == {WindowDetokenizer}


def test_the_cost_is_linear_in_broken_and_in_whole_text() -> None:
    tokenizer = KINDS["byte_level"]
    lead = tokenizer.encode("😀")[0]
    for answer in ([lead] * 4000, tokenizer.encode("hello ") * 1000):
        counted = CountingTokenizer(tokenizer)
        detokenizer = WindowDetokenizer(counted)
        for token in answer:
            detokenizer.push([token])
        assert counted.decoded < 50 * len(answer)


class CountingTokenizer(Tokenizer):
    """Counts the tokens that were decoded."""

    def __init__(self, like: Tokenizer) -> None:
        super().__init__(toy_tokenizer.byte_level(), like.special)
        self.decoded = 0

    def decode(self, ids, skip_special_tokens=True):  # type: ignore[no-untyped-def]
        self.decoded += len(ids)
        return super().decode(ids, skip_special_tokens)
