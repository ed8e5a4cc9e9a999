"""The bytes that each token of a byte-level tokenizer adds to the text."""

from functools import cache

import tokenizers


class ByteTable(dict[int, bytes]):
    """The bytes of each token, as `table[token_id]`. Made at the first look-up, to start quickly.

    A byte-level decoder joins its tokens' bytes and looks at no neighbours: GPT-2's alphabet where
    a piece is spelt in it, else (an added token) the piece as it stands.
    """

    def __init__(self, backend: tokenizers.Tokenizer, hidden: frozenset[int]) -> None:
        """hidden: ids without text. Ids that the vocabulary lacks have none either."""
        super().__init__()
        self._backend = backend
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        piece = None if token_id in self._hidden else self._backend.id_to_token(token_id)
        made = self[token_id] = b"" if piece is None else spelt_bytes(piece)
        return made


def spelt_bytes(piece: str) -> bytes:
    alphabet = byte_alphabet()
    if all(char in alphabet for char in piece):
        return bytes(alphabet[char] for char in piece)
    return piece.encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's character for each byte: printable ones as they are, others from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}
