"""The most bytes of text that one token can stand for, where that is known."""

import json
from typing import Any

import tokenizers

from baton.text.byte_table import byte_alphabet

_KEEPS_ALL = {"ByteLevel", "Digits", "Punctuation", "Split"}
"""Steps before the merges that remove no character; `Split` unless its behaviour is Removed."""


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
