"""What single tokens look like in tables of log probabilities."""

from functools import cache

from baton.text.tokenizer import Tokenizer


class TokenTable:
    """The text and the bytes of one token as it stands within an answer, special ones shown."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        """With the leading space that a decoder takes from an answer's first token."""
        text = self._texts.get(token_id)
        if text is None:
            once = self._tokenizer.decode([token_id], skip_special_tokens=False)
            twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
            text = self._texts[token_id] = twice[len(once) :]
        return text

    def raw_bytes(self, token_id: int) -> bytes:
        """Exact also where the token is a part of a character."""
        piece = self._tokenizer.piece(token_id)
        if piece is not None and token_id in self._tokenizer.byte_ids:
            return bytes([int(piece[3:5], 16)])
        if piece is not None and self._tokenizer.is_byte_level:
            alphabet = byte_alphabet()
            if all(char in alphabet for char in piece):
                return bytes(alphabet[char] for char in piece)
        return self.text(token_id).encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: itself where it prints, else the next from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}
