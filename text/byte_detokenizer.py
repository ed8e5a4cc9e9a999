"""The conversion of token ids to text for byte-level tokenizers, by a table of bytes."""

from codecs import utf_8_decode
from collections.abc import Sequence

from baton.text.byte_table import ByteTable


class ByteDetokenizer:
    """A `Detokenizer` that holds back at most three bytes: the beginning of one character."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids. Return the text that they make certain, which may be empty."""
        table = self._table
        data = self._held + b"".join([table[i] for i in ids])
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        """Return the text that was still held back. No push may follow."""
        return self._held.decode(errors="replace")
