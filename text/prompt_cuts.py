"""Places at which a prompt can be cut into parts that have the same tokens alone as together.

The library first takes added tokens out of a text: from the left, the longest where several begin
at one place. It then normalises and splits what lies between them, each stretch by itself. Only the
first stretch of a text may be treated otherwise, as Metaspace with `prepend_scheme` first does. A
part that begins with an added token has no such stretch.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tokenizers
from tokenizers import models


class PromptCut(NamedTuple):
    """An added token in a text, before which the text can be cut."""

    place: int  # the character at which it begins
    token_id: int


@dataclass(frozen=True)
class PromptCuts:
    """The cuts of one tokenizer's texts."""

    ids: Mapping[str, int]  # the tokens before which a text can be cut
    _pattern: "re.Pattern[str]"  # any added token that is taken out of unchanged text
    _start: str  # what they all begin with

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "PromptCuts | None":
        """Return the cuts; None for a tokenizer whose texts cannot be cut."""
        model, unknown = backend.model, None
        if isinstance(model, models.BPE) and model.dropout:
            return None  # it draws its tokens by chance
        if isinstance(model, models.BPE | models.WordPiece | models.WordLevel):
            unknown = model.unk_token  # any text may have its id
        # Others are looked for in normalised text, within a stretch.
        added = [
            (token, token_id)
            for token_id, token in backend.get_added_tokens_decoder().items()
            if not token.normalized and token.content
        ]
        if any(token.single_word for token, _ in added):
            return None  # it depends on what stands beside the token
        ids = {
            token.content: token_id
            for token, token_id in added
            if _stands_alone(token) and token.content != unknown
        }
        if not ids:
            return None
        words = [token.content for token, _ in added]
        return cls(ids, re.compile(_longest_of(words)), _common_start(words))

    def find(self, text: str) -> list[PromptCut]:
        """Return all cuts of a text, in order."""
        ids, found = self.ids, self._all(text) if self._start else self._pattern.finditer(text)
        return [PromptCut(each.start(), ids[each[0]]) for each in found if each[0] in ids]

    def _all(self, text: str) -> "Iterator[re.Match[str]]":
        """Yield what `finditer` does, a tenth of the time for a text of few such starts."""
        at = text.find(self._start)
        while at >= 0:
            found = self._pattern.match(text, at)
            if found is not None:
                yield found
            at = text.find(self._start, at + 1 if found is None else found.end())


def _stands_alone(token: tokenizers.AddedToken) -> bool:
    """Return True for a token that takes no white space from its neighbours."""
    return not (token.lstrip or token.rstrip)


def _longest_of(words: Sequence[str]) -> str:
    """Return a regular expression of the longest of `words` that begins at a place.

    As a tree of their characters: an alternation tries thousands of reserved tokens one by one.
    """
    rest: dict[str, list[str]] = {}
    for word in words:
        if word:
            rest.setdefault(word[0], []).append(word)
    branches = []
    for group in rest.values():
        common = _common_start(group)
        inner = _longest_of([word[len(common) :] for word in group])
        branches.append(re.escape(common) + inner)
    if not branches:
        return ""
    whole = f"(?:{'|'.join(branches)})"
    return f"{whole}?" if "" in words else whole


def _common_start(words: Sequence[str]) -> str:
    first, last = min(words), max(words)
    size = 0
    while size < len(first) and first[size] == last[size]:
        size += 1
    return first[:size]
