"""Engine and API make the same text of the same ids."""

import pytest
import toy_tokenizer
from hypothesis import given
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
