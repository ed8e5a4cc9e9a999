"""The conversion of token ids to text as they arrive, in whole characters only."""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

from baton.text.byte_table import ByteTable
from baton.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
_LONG_PENDING = 16
"""The number of tokens without a whole character at their end beyond which the window is cut."""
_RESYNC = 8
"""Tokens that the cut keeps. A broken sequence affects at most the three bytes after it."""


class Detokenizer(Protocol):
    """A converter that returns the text of the ids so far, without what later ids may change.

    The text returned depends on the ids alone, not on how they were grouped into pushes: a stream
    is rebuilt elsewhere by pushing all its ids at once. All pushes and `finish` joined equal
    `tokenizer.decode` of all ids.
    """

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids. Return the text that they make certain, which may be empty."""
        ...

    def finish(self) -> str:
        """Return the text that was still held back. No push may follow."""
        ...


class ByteDetokenizer:
    """A `Detokenizer` that holds back at most three bytes: the beginning of one character."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids. Return the text that they make certain, which may be empty."""
        data = self._held + b"".join(map(self._table.__getitem__, ids))
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        """Return the text that was still held back. No push may follow."""
        return self._held.decode(errors="replace")


def make_detokenizer(
    tokenizer: Tokenizer, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset()
) -> Detokenizer:
    """Return the cheapest detokenizer that the tokenizer's decoder allows. shown: special tokens
    whose text is shown nevertheless."""
    table = tokenizer.byte_table(skip_special_tokens, shown)
    if table is not None:
        return ByteDetokenizer(table)
    return WindowDetokenizer(tokenizer, skip_special_tokens, shown)


class WindowDetokenizer:
    """A `Detokenizer` for any tokenizer, by the tokenizer's own decoder.

    Decoders look at neighbours (the first token loses its leading space, bytes join into
    characters), so a token is decoded in a window with the token before it, and what the window
    had already shown is dropped. The window stays short, so the whole answer costs linear time.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        self._shown_ids = shown
        self._window: list[int] = []
        # One bad byte turns its whole run of byte tokens into replacement characters, so nothing of
        # a run is certain before a token of another kind ends it: byte tokens wait here.
        self._byte_run: list[int] = []
        self._shown = 0  # characters of the window's text that were returned
        self._context = 0  # tokens at the window's start that are wholly shown

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids. Return the text that they make certain, which may be empty."""
        fresh = self._tokenizer.with_text(ids, self._skip_special, self._shown_ids)
        settled = len(fresh)
        while settled and fresh[settled - 1] in self._tokenizer.byte_ids:
            settled -= 1
        if not settled:
            self._byte_run += fresh
            return ""
        self._window += self._byte_run + fresh[:settled]
        self._byte_run = fresh[settled:]
        return self._show(hold_replacement=True)

    def finish(self) -> str:
        """Return the text that was still held back. No push may follow."""
        self._window += self._byte_run
        self._byte_run = []
        return self._show(hold_replacement=False) if self._window else ""

    def _show(self, hold_replacement: bool) -> str:
        text = self._decode(self._window)
        # An unfinished character is one replacement character, always the last.
        certain = len(text)
        if hold_replacement and text.endswith(REPLACEMENT):
            certain -= 1
        delta = text[self._shown : certain]
        self._shown = max(self._shown, certain)
        if certain == len(text):
            self._slide(delta)
        elif len(self._window) - self._context > _LONG_PENDING:
            self._cut_broken()
        return delta

    def _slide(self, delta: str) -> None:
        """Keep the tokens just shown as context, unless they made no text."""
        if not delta:
            return
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown = len(self._decode(self._window))

    def _cut_broken(self) -> None:
        """Cut the window in a long run of broken bytes, of which all but the end was shown."""
        tail = self._window[-_RESYNC:]
        text = self._decode(tail)
        if len(text) >= _RESYNC // 2 + 1:
            self._window = tail
            self._context = 0
            self._shown = len(text) - 1

    def _decode(self, ids: Sequence[int]) -> str:
        # The window holds ids with text only, so nothing is left to skip.
        return self._tokenizer.decode(ids, skip_special_tokens=False)
