"""Single tokens as tables show them."""

from tokenizers import pre_tokenizers
from toy_tokenizer import byte_fallback, byte_level, word_piece

from baton.text.byte_table import byte_alphabet
from baton.text.special_tokens import SpecialTokens
from baton.text.token_table import TokenTable
from baton.text.tokenizer import Tokenizer


def test_the_bytes_of_tokens_join_to_the_bytes_of_the_text() -> None:
    text = "naïve 😀 日本語<|end|>"
    tokenizer = Tokenizer(byte_level(), SpecialTokens())
    table = TokenTable(tokenizer)
    assert b"".join(table.raw_bytes(i) for i in tokenizer.encode(text)) == text.encode()


def test_byte_fallback_tokens_are_their_byte() -> None:
    tokenizer = Tokenizer(byte_fallback(), SpecialTokens())
    table = TokenTable(tokenizer)
    assert b"".join(table.raw_bytes(i) for i in tokenizer.encode("hello€")).endswith("€".encode())


def test_a_token_keeps_the_space_that_it_has_inside_an_answer() -> None:
    for backend, piece in ((byte_fallback(), "▁world"), (word_piece(), "world")):
        tokenizer = Tokenizer(backend, SpecialTokens())
        token = backend.token_to_id(piece)
        assert token is not None
        assert tokenizer.decode([token]) == "world"
        assert TokenTable(tokenizer).text(token) == " world"


def test_the_byte_alphabet_is_the_tokenizers_own() -> None:
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
