"""Engine and API make the same text of the same ids."""

import pytest
import toy_tokenizer
from hypothesis import assume, given
from hypothesis import strategies as st

from baton.text.answer import AnswerText
from baton.text.special_tokens import SpecialTokens
from baton.text.tokenizer import Tokenizer

KINDS = {
    "byte_level": Tokenizer(toy_tokenizer.byte_level(), SpecialTokens()),
    "byte_fallback": Tokenizer(toy_tokenizer.byte_fallback(), SpecialTokens()),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), include=st.booleans())
def test_what_the_engine_cuts_is_what_the_client_never_sees(
    kind: str, data: st.DataObject, include: bool
) -> None:
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    text = tokenizer.decode(ids)
    stop = text[data.draw(st.integers(0, 5)) :][: data.draw(st.integers(1, 4))] or "never"
    min_tokens = data.draw(st.integers(0, 20))

    engine = AnswerText(tokenizer, [stop], include_stop=include, min_tokens=min_tokens)
    given_ids: list[int] = []
    for token in ids:
        given_ids.append(token)
        engine.push([token])
        if engine.match:
            break
    cut = engine.end()

    client = AnswerText(tokenizer, [stop], include_stop=include, min_tokens=min_tokens)
    half = len(given_ids) // 2
    streamed = client.push(given_ids[:half]) + client.push(given_ids[half:])
    full = tokenizer.decode(given_ids)
    shown = streamed + client.finish(cut)

    assert shown == full[: len(full) - cut]
    if engine.match:
        assert shown.endswith(stop) if include else full[len(shown) :].startswith(stop)
        assert len(given_ids) >= min_tokens or len(given_ids) == len(ids)
    elif min_tokens == 0:
        assert stop not in full


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), include=st.booleans(), special=st.booleans())
def test_a_token_that_ends_the_answer_is_shown_only_where_it_is_asked_for(
    kind: str, data: st.DataObject, include: bool, special: bool
) -> None:
    tokenizer = KINDS[kind]
    words = st.sampled_from(["hello", " world", "STOP", "é", "😀", "<s>"])
    ids = tokenizer.encode("".join(data.draw(st.lists(words, min_size=1, max_size=8))), False)
    text, before = (tokenizer.decode(some, not special) for some in (ids, ids[:-1]))
    assume(
        "\ufffd" not in text + before
    )  # where the token is a part of a letter, all is cut or none
    visible = len(tokenizer.decode(ids)) - len(tokenizer.decode(ids[:-1]))

    client = AnswerText(
        tokenizer, include_stop=include, skip_special_tokens=not special, end_ids=ids[-1:]
    )
    at = data.draw(st.integers(0, len(ids)))
    streamed = client.push(ids[:at]) + client.push(ids[at:])
    shown = streamed + client.finish(0 if include else visible)
    assert shown == (text if include else before)


def test_a_stop_string_said_before_min_tokens_does_not_end_the_answer() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("STOP the world STOP")
    answer = AnswerText(tokenizer, ["STOP"], min_tokens=3)
    shown = "".join(answer.push([i]) for i in ids)
    assert shown + answer.finish(answer.end()) == "STOP the world "


def test_a_stop_string_that_the_last_token_left_uncertain_is_found_at_the_end() -> None:
    tokenizer = KINDS["byte_fallback"]
    answer = AnswerText(tokenizer, ["€"])
    assert answer.push(tokenizer.encode("hello€")) == "hello"
    assert answer.match is None
    assert answer.end() == 1
    assert answer.match is not None
