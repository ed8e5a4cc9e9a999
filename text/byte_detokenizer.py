"""Token ids to text for byte-level tokenizers: a look-up a token, and no decoder."""

from codecs import utf_8_decode
from collections.abc import Sequence

from baton.text.byte_table import ByteTable


class ByteDetokenizer:
    """A `Detokenizer`: what is held back is the beginning of one character, at most three bytes."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain; may be empty."""
        table = self._table
        data = self._held + b"".join([table[i] for i in ids])
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def finish(self) -> str:
        """What was still held back; no push may follow."""
        return self._held.decode(errors="replace")
