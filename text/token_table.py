"""Single tokens as tables of log probabilities show them."""

from baton.text.byte_table import spelt_bytes
from baton.text.tokenizer import Tokenizer


class TokenTable:
    """The text and the bytes of one token as it stands within an answer, special ones shown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """Return the token's text, with the space that decoders remove from a first token."""
        text = self._texts.get(token_id)
        if text is None:
            once = self._tokenizer.decode([token_id], skip_special_tokens=False)
            twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
            text = self._texts[token_id] = twice[len(once) :]
        return text

    def raw_bytes(self, token_id: int) -> bytes:
        """Return the token's bytes. They are exact even if the token is a part of a character."""
        piece = self._tokenizer.piece(token_id)
        if piece is not None and token_id in self._tokenizer.byte_ids:
            return bytes([int(piece[3:5], 16)])
        if piece is not None and self._tokenizer.is_byte_level:
            return spelt_bytes(piece)
        return self.text(token_id).encode()
