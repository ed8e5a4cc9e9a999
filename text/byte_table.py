"""The bytes that tokens stand for: each token of a byte-level tokenizer, and the longest one."""

import json
from functools import cache
from typing import Any

import tokenizers

_KEEPS_ALL = {"ByteLevel", "Digits", "Punctuation", "Split"}
"""Steps before the merges that remove no character; `Split` unless its behaviour is Removed."""


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


def longest_token(backend: tokenizers.Tokenizer) -> int | None:
    """Return the bytes of the longest token; None where a token may stand for any number.

    Known for byte-level merges without a normaliser: each byte of a text is in exactly one token.
    Normalisers may remove text, other models have one token for anything unknown, and added tokens
    may take the spaces beside them.
    """
    added = backend.get_added_tokens_decoder().values()
    if backend.normalizer is not None or any(token.lstrip or token.rstrip for token in added):
        return None
    if not isinstance(backend.model, tokenizers.models.BPE) or not _keeps_all(backend):
        return None
    vocab = backend.get_vocab(with_added_tokens=False)
    if not byte_alphabet().keys() <= vocab.keys():
        return None
    longest = max(map(len, vocab))  # a character of a piece is one byte
    return max([longest, *(len(token.content.encode()) for token in added)])


def _keeps_all(backend: tokenizers.Tokenizer) -> bool:
    """Return True if every byte of a text reaches the merges."""
    if backend.pre_tokenizer is None:
        return False
    state: dict[str, Any] = json.loads(backend.pre_tokenizer.__getstate__())
    steps: list[dict[str, Any]] = state.get("pretokenizers", [state])
    kept = all(
        step["type"] in _KEEPS_ALL and step.get("behavior", "") != "Removed" for step in steps
    )
    return kept and any(step["type"] == "ByteLevel" for step in steps)
