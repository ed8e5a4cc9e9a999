"""Single tokens as tables of log probabilities show them."""

from functools import cache, partial

from baton.text.byte_table import spelt_bytes
from baton.text.tokenizer import Tokenizer


class TokenTable:
    """The text and the bytes of one token as it stands within an answer, special ones shown. Both
    are remembered: the same few thousand tokens are nearly all that tables show.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.text = cache(partial(_text, tokenizer))
        """The token's text, with the space that decoders remove from a first token."""
        self.raw_bytes = cache(partial(_raw_bytes, tokenizer))
        """The token's bytes. They are exact even if the token is a part of a character."""


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    once = tokenizer.decode([token_id], skip_special_tokens=False)
    twice = tokenizer.decode([token_id, token_id], skip_special_tokens=False)
    return twice[len(once) :]


def _raw_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    piece = tokenizer.piece(token_id)
    if piece is not None and token_id in tokenizer.byte_ids:
        return bytes([int(piece[3:5], 16)])
    if piece is not None and tokenizer.is_byte_level:
        return spelt_bytes(piece)
    return _text(tokenizer, token_id).encode()
