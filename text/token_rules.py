"""The tokens that an answer may have next: what its grammar, allowed tokens and banned words
leave."""

from array import array
from collections.abc import Collection, Iterable, Sequence
from copy import copy

from baton.text.errors import GrammarError
from baton.text.grammar import WORD_BITS, GrammarState
from baton.text.tokenizer import Tokenizer

_FULL = -1  # a word of a mask with every bit set
_MARK = "\x02"  # in no word: what follows it is not at the beginning of a text


class TokenRules:
    """The rules of one answer, as far as the tokens that it has. Rebuilt from these where needed.

    A mask has a bit for each token: bit `i % 64` of word `i // 64` is set if token `i` may come.
    """

    def __init__(
        self,
        grammar: GrammarState | None,
        words: int,
        *,
        given: Sequence[int] = (),
        allowed_ids: Collection[int] = (),
        banned: Collection[tuple[int, ...]] = (),
        end_ids: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        """grammar: after `given`, the tokens that the answer has. words: of a mask.

        allowed_ids: none: all. banned: sequences of ids that must not come. end_ids: must not come
        among the first `min_tokens`.
        """
        self._grammar = grammar
        # A tokenizer may have ids that the model lacks: no answer has these.
        banned = [ids for ids in banned if max(ids) < words * WORD_BITS]
        self._longer = tuple(ids for ids in banned if len(ids) > 1)
        self._looks_back = max(map(len, self._longer), default=1) - 1
        self._tail = list(given[-self._looks_back :]) if self._looks_back else []
        self._end_ids = tuple(end_ids)
        self._short = max(min_tokens - len(given), 0)  # tokens until one of `end_ids` may come
        self._base: array[int] | None = None  # what is allowed always; None: every token
        if allowed_ids or banned:
            self._base = _mask_of(allowed_ids, words)
            _clear(self._base, (ids[0] for ids in banned if len(ids) == 1))
        self._allowed: array[int] | None = None  # until the next token

    def fork(self) -> "TokenRules":
        """Return the rules of another answer that has the same tokens so far."""
        forked = copy(self)
        forked._tail = list(self._tail)
        forked._grammar = None if self._grammar is None else self._grammar.fork()
        return forked

    def allows(self, token_id: int) -> bool:
        """Return true if that token may come next. Raises GrammarError where none may."""
        return bool(self.allowed()[token_id // WORD_BITS] >> token_id % WORD_BITS & 1)

    @property
    def follows(self) -> bool:
        """The next mask depends on the tokens so far."""
        return self._grammar is not None or bool(self._longer) or self._short > 0

    @property
    def ended(self) -> bool:
        """The grammar is satisfied, and no token may follow."""
        return self._grammar is not None and self._grammar.ended

    def forced(self) -> Sequence[int]:
        """Return tokens that spell what the grammar wants next, whatever the model would say; () if
        it leaves a choice. The same text may have other tokens, so that these are guesses.
        """
        return () if self._grammar is None or self.ended else self._grammar.forced()

    def allowed(self) -> "array[int]":
        """Return the mask of the tokens that may come next. Raises GrammarError where none may."""
        if self._allowed is None:
            self._allowed = self._mask()
        return self._allowed

    def push(self, token_id: int) -> None:
        """Take the next token. Raises GrammarError where the grammar does not allow it."""
        self._allowed = None
        self._short = max(self._short - 1, 0)
        if self._looks_back:
            self._tail = [*self._tail, token_id][-self._looks_back :]
        if self._grammar is not None:
            self._grammar.push(token_id)

    def _mask(self) -> "array[int]":
        mask = None if self._grammar is None else self._grammar.allowed()
        if self._base is None:
            assert mask is not None, "rules without a rule"
            return mask
        mask = self._base if mask is None else _both(mask, self._base)
        begun = [ids[-1] for ids in self._longer if self._tail[1 - len(ids) :] == list(ids[:-1])]
        if begun or self._short:
            mask = mask[:]
            _clear(mask, begun)
            if self._short:
                _clear(mask, self._end_ids)
        if not any(mask):
            raise GrammarError(
                "the answer cannot go on: allowed_token_ids, bad_words, min_tokens and the grammar "
                "together leave no token"
            )
        return mask


def banned_sequences(tokenizer: Tokenizer, words: Iterable[str]) -> frozenset[tuple[int, ...]]:
    """Return the token sequences that spell each word: at the beginning of a text, after a space,
    and within one. Raises GrammarError for a word that has no tokens.
    """
    found: set[tuple[int, ...]] = set()
    lead = tokenizer.encode(_MARK, add_special_tokens=False)
    for word in words:
        after_mark = tokenizer.encode(_MARK + word, add_special_tokens=False)
        spelt = {
            tuple(tokenizer.encode(word, add_special_tokens=False)),
            tuple(tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False)),
            tuple(after_mark[len(lead) :]) if after_mark[: len(lead)] == lead else (),
        } - {()}
        if not spelt:
            raise GrammarError(f"the tokenizer has no tokens for the bad word {word[:80]!r}")
        found |= spelt
    return frozenset(found)


def words_of(vocab_size: int) -> int:
    """Return the number of words of a mask of so many tokens."""
    return -(-vocab_size // WORD_BITS)


def _mask_of(ids: Collection[int], words: int) -> "array[int]":
    """Return the mask of these tokens, or of all if there are none."""
    if not ids:
        return array("q", [_FULL] * words)
    bits = bytearray(words * WORD_BITS // 8)
    for token in ids:
        bits[token >> 3] |= 1 << (token & 7)
    return array("q", bytes(bits))


def _both(first: "array[int]", second: "array[int]") -> "array[int]":
    """Return the bits that both masks have: by one operation on long integers."""
    bits = int.from_bytes(first.tobytes(), "little") & int.from_bytes(second.tobytes(), "little")
    return array("q", bits.to_bytes(len(first) * 8, "little"))


def _clear(mask: "array[int]", ids: Iterable[int]) -> None:
    """Clear the bits of these tokens, in place."""
    for token in ids:
        word = token // WORD_BITS
        bit = 1 << token % WORD_BITS
        value = mask[word] & (2**WORD_BITS - 1) & ~bit
        mask[word] = value - 2**WORD_BITS if value >> (WORD_BITS - 1) else value
