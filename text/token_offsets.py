"""The character of the text at which each token begins.

A token begins in the character that has its first byte. A token without text begins where the text
before it ends.
"""

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import Protocol

from baton.text.byte_table import ByteTable
from baton.text.tokenizer import Tokenizer


class TokenOffsets(Protocol):
    """A counter of characters in the text that a `Detokenizer` makes of the same ids."""

    def push(self, ids: Sequence[int]) -> list[int]:
        """Take the next ids. Return the offsets that are certain now, in the order of the ids."""
        ...

    def finish(self) -> list[int]:
        """Return the offsets of the ids that are left. No push may follow."""
        ...


def make_token_offsets(
    tokenizer: Tokenizer, skip_special_tokens: bool = True, after: int | None = None
) -> TokenOffsets:
    """Return a counter that begins at 0.

    after: the token before the first, where the text continues another; None: a text of its own.
    """
    table = tokenizer.spelling(skip_special_tokens)
    if table is not None:
        return ByteOffsets(table)
    return WindowOffsets(tokenizer, skip_special_tokens, after)


class ByteOffsets:
    """The `TokenOffsets` of byte-level tokenizers. Every offset is certain at once."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._held = b""  # the beginning of a character
        self._chars = 0  # before it

    def push(self, ids: Sequence[int]) -> list[int]:
        found = []
        for token in ids:
            data, start = self._table[token], self._chars
            if self._held:
                start += _place_of_last(self._held + data[:1]) if data else 0
                data = self._held + data
            text, used = utf_8_decode(data, "replace", False)
            self._chars += len(text)
            self._held = data[used:]
            found.append(start)
        return found

    def finish(self) -> list[int]:
        return []


def _place_of_last(data: bytes) -> int:
    """Return the index of the character that has the last of these bytes."""
    text, used = utf_8_decode(data, "replace", False)
    return len(text) - (used == len(data))


class WindowOffsets:
    """The `TokenOffsets` of any tokenizer, by the tokenizer's own decoder.

    Tokens of single bytes wait for the end of their run: one bad byte makes all of them replacement
    characters.
    """

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool = True, after: int | None = None
    ) -> None:
        """after: as for `make_token_offsets`."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        # The last token with text, which decides how the next looks.
        self._before = [] if after is None else [after]
        self._run: list[int] = []  # tokens of single bytes, and those without text among them
        self._chars = 0  # before the run

    def push(self, ids: Sequence[int]) -> list[int]:
        found: list[int] = []
        for token in ids:
            if token in self._tokenizer.byte_ids or (self._run and not self._shown([token])):
                self._run.append(token)
                continue
            found += self.finish()
            found.append(self._chars)
            shown = self._shown([token])
            if shown:
                self._chars += len(self._text(shown))
                self._before = shown
        return found

    def finish(self) -> list[int]:
        if not self._run:
            return []
        shown = self._shown(self._run)
        if self._before and self._before[0] in self._tokenizer.byte_ids:
            self._before = []  # the text before ends within this run, which is not joined to it
        text = self._text(shown)
        data = b"".join(map(self._byte, shown))
        try:
            whole = len(data.decode())
            # One character fewer: the decoder removes a space at the beginning of the text.
            starts = _char_starts(data, whole - len(text))
        except UnicodeDecodeError:
            starts = list(range(len(data)))
        found, places = [], iter(starts)
        end = self._chars + len(text)
        waiting = 0  # ids without text begin where the next byte does
        for token in self._run:
            waiting += 1
            if token in self._tokenizer.byte_ids:
                found += [self._chars + next(places)] * waiting
                waiting = 0
        found += [end] * waiting
        self._chars = end
        self._before = shown[-1:]
        self._run = []
        return found

    def _shown(self, ids: Sequence[int]) -> list[int]:
        return self._tokenizer.with_text(ids, self._skip_special)

    def _text(self, ids: list[int]) -> str:
        """Return what `ids` add to the text that ends with the token before them."""
        before = self._decode(self._before)
        return self._decode(self._before + ids)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _byte(self, token: int) -> bytes:
        return bytes.fromhex((self._tokenizer.piece(token) or "")[3:5])


def _char_starts(data: bytes, removed: int) -> list[int]:
    """Return the character that each byte of valid UTF-8 is in, after `removed` characters."""
    chars = -1
    starts = []
    for byte in data:
        chars += byte & 0xC0 != 0x80
        starts.append(max(chars - removed, 0))
    return starts


def offsets_in(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return where each token of a text begins, from the (begin, end) that the tokenizer library
    names.

    Characters between two tokens belong to the second: libraries leave spaces out.
    """
    found = []
    end = 0
    for begin, after in spans:
        found.append(end if begin > end or begin == after else begin)
        end = max(end, after)
    return found


def text_after(tokenizer: Tokenizer, before: int, token_id: int) -> str:
    """Return the text of `token_id` where it follows the token `before`.

    Decoders remove the space of a text's first token; this is the token with it.
    """
    begun = tokenizer.decode([before], skip_special_tokens=False)
    both = tokenizer.decode([before, token_id], skip_special_tokens=False)
    return both[len(begun) :]
