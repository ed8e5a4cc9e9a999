"""Compiled grammars: the forms that answers must have.

A compiled grammar says, before each token, which tokens may come. llguidance does the parsing; it
is imported where the first grammar is made, so that this room needs it for nothing else.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.forced_bytes import ForcedBytes
from baton.text.grammar_limits import check_limits
from baton.text.special_masks import SpecialMasks, named_tokens
from baton.text.token_table import TokenTable
from baton.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 1 << 16
MAX_SYMBOLS = 60_000
"""Symbols of a compiled grammar. llguidance 1.9 panics past 65,525, after a second of work."""
WORD_BITS = 64
_ALL_BITS = (1 << WORD_BITS) - 1
_KEPT = 16  # compiled grammars, and those that could not be
_MARK = "\x02"  # in no word: what follows it is not at the beginning of a text


class CompiledGrammar:
    """A grammar at the beginning of an answer. Immutable."""

    def __init__(
        self,
        matcher: "LLMatcher",
        words: int,
        forced_bytes: ForcedBytes | None = None,
        special: SpecialMasks | None = None,
    ) -> None:
        """forced_bytes, special: what corrects masks; None where they need no correction."""
        self._matcher = matcher
        self._words = words
        self._forced_bytes = forced_bytes
        self._special = special

    def start(self, given: Sequence[int] = ()) -> "GrammarState":
        """Return the state of an answer that begins with the tokens `given`.

        It is a copy, made quickly enough for the engine's thread. Raises GrammarError if the tokens
        do not fit the grammar, or the model has no token that could come next.
        """
        state = GrammarState(
            self._matcher.deep_copy(), self._words, self._forced_bytes, self._special
        )
        for token in given:
            state.push(token)
        if not state.ended:
            state.check_forced()
            state.allowed()
        return state


class GrammarCompiler:
    """A compiler for one tokenizer. Thread-safe; it compiles one grammar at a time."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        """vocab_size: the model's, which may have more ids than the tokenizer
        end_ids: ids that end an answer; they may come where the grammar is satisfied
        """
        self.words = -(-vocab_size // WORD_BITS)
        """Words of a mask: bit `i % 64` of word `i // 64` is set if token `i` may come."""
        self._vocab_size = vocab_size
        self._end_ids = sorted(token for token in end_ids if token < vocab_size)
        self._tokenizer = tokenizer
        self._table: LLTokenizer | None = None
        self._forced_bytes: ForcedBytes | None = None
        self._doubtful: list[int] = []  # tokens that masks may have where a special one may come
        self._compiling = threading.Lock()
        self._keeping = threading.Lock()  # held for a moment only
        self._kept: OrderedDict[Grammar, CompiledGrammar | GrammarError] = OrderedDict()

    def kept(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return the grammar if it was compiled before. Raises GrammarError if that failed."""
        with self._keeping:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))  # its own trace, not that of whoever asked first
        return found

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar. Raises GrammarError that says what is wrong with it.

        A large one takes a quarter of a second, during which other threads may run Python. The
        last few results are kept.
        """
        with self._compiling:
            found = self.kept(grammar)
            if found is not None:
                return found
            try:
                made: CompiledGrammar | GrammarError = self._compile(grammar)
            except GrammarError as error:
                made = error
            with self._keeping:
                self._kept[grammar] = made
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
        if isinstance(made, GrammarError):
            raise made
        return made

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        from llguidance import LLMatcher
        from llguidance._lib import LLParserLimits

        limits = LLParserLimits(max_grammar_size=MAX_SYMBOLS)
        matcher = LLMatcher(self._tokens(), _source(grammar), log_level=0, limits=limits)
        if matcher.is_error():
            why, _, _ = matcher.get_error().partition("\n<backtrace>")
            raise GrammarError(f"the {grammar.kind} cannot be used: {why.strip()}")
        special = self._special_masks(grammar)
        compiled = CompiledGrammar(matcher, self.words, self._forced_bytes, special)
        self._check_start(compiled, grammar)
        return compiled

    def _special_masks(self, grammar: Grammar) -> SpecialMasks | None:
        """Return what corrects the masks of a grammar that names special tokens."""
        if grammar.kind not in (GrammarKind.LARK, GrammarKind.EBNF):
            return None
        named = named_tokens(grammar.text, self._vocab_size)
        return SpecialMasks([*named, *self._end_ids], self._doubtful) if named else None

    def _check_start(self, compiled: CompiledGrammar, grammar: Grammar) -> None:
        """Raise GrammarError for a grammar that no answer fits, or the empty one alone."""
        try:
            state = compiled.start()
            mask = None if state.ended else state.allowed()
        except GrammarError as error:
            raise GrammarError(
                f"the {grammar.kind} cannot be used: no text fits it, or no token of this model "
                f"begins one ({error})"
            ) from error
        ends = {token // WORD_BITS: 0 for token in self._end_ids}
        for token in self._end_ids:
            ends[token // WORD_BITS] |= 1 << token % WORD_BITS
        if mask is None or not any(
            word & ~ends.get(at, 0) & _ALL_BITS for at, word in enumerate(mask)
        ):
            raise GrammarError(
                f"the {grammar.kind} cannot be used: no answer but the empty one fits it"
            )

    def _tokens(self) -> "LLTokenizer":
        """Return the vocabulary in llguidance's form, which is made once."""
        if not self._end_ids:
            raise GrammarError(
                "this model names no end-of-sequence token, which structured output ends with"
            )
        if self._table is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            tokens = _Tokens(self._tokenizer, self._vocab_size, self._end_ids)
            spelling = ForcedBytes(tokens.tokens)
            self._forced_bytes = None if spelling.complete else spelling
            # llguidance spells a special token with a byte that is in no text before its id.
            self._doubtful = [i for i, raw in enumerate(tokens.tokens) if raw[:1] in (b"", b"\xff")]
            self._table = LLTokenizer(
                TokenizerWrapper(tokens),
                n_vocab=self._vocab_size,
                eos_token=self._end_ids,
            )
        return self._table


class GrammarState:
    """The position of one answer in its grammar. Rebuilt from the answer's tokens where needed."""

    def __init__(
        self,
        matcher: "LLMatcher",
        words: int,
        forced_bytes: ForcedBytes | None = None,
        special: SpecialMasks | None = None,
    ) -> None:
        """forced_bytes, special: what corrects masks; None where they need no correction."""
        self._matcher = matcher
        self._words = words
        self._forced_bytes = forced_bytes
        self._special = special
        self._allowed: array[int] | None = None  # until the next token

    def fork(self) -> "GrammarState":
        """Return another answer at this position."""
        forked = GrammarState(
            self._matcher.deep_copy(), self._words, self._forced_bytes, self._special
        )
        forked._allowed = self._allowed
        return forked

    @property
    def ended(self) -> bool:
        """The grammar is satisfied, and no token may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def forced(self) -> Sequence[int]:
        """Return the tokens that the tokenizer would spell the text with that must come next; () if
        there is a choice. Not to be called once the grammar has ended.
        """
        return self._matcher.compute_ff_tokens()

    def check_forced(self) -> None:
        """Raise GrammarError if the model's tokens cannot spell the text that must come next."""
        if self._forced_bytes is not None:
            forced = self._matcher.compute_ff_bytes()
            if not self._forced_bytes.spells(forced):
                raise _stuck(f"{forced.decode(errors='replace')[:80]} must come")

    def allowed(self) -> "array[int]":
        """Return the mask of the tokens that may come next; see `GrammarCompiler.words`.

        Not to be called once the grammar has ended. Raises GrammarError, on every call, if the
        model has no such token, as happens with a vocabulary of whole words, or if the grammar grew
        too complex.
        """
        if self._allowed is None:
            size = self._words * WORD_BITS // 8
            raw = self._matcher.compute_bitmask()[:size].ljust(size, b"\0")
            if self._matcher.is_error():  # the mask then lets the answer end as if it were whole
                raise _stuck(self._matcher.get_error().splitlines()[0])
            if self._special is not None:
                raw = self._special.corrected(self._matcher, raw)
            mask = array("q", raw)
            if self._forced_bytes is not None:
                mask = self._forced_bytes.corrected(self._matcher, mask)
                if not any(mask):
                    raise _stuck("its next bytes are in none")
            self._allowed = mask
        return self._allowed

    def push(self, token_id: int) -> None:
        """Take the next token. Raises GrammarError if it is not allowed, or if the grammar grew too
        complex."""
        self._allowed = None
        if not self._matcher.consume_token(token_id):
            why = self._matcher.get_error().partition("\n")[0]
            raise GrammarError(f"the answer has left its grammar: {why}")


def _stuck(why: str) -> GrammarError:
    return GrammarError(
        "the answer cannot go on: no token of this model spells what its grammar wants next "
        f"({why})"
    )


class _Tokens:
    """A vocabulary, in the form that llguidance reads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: list[int]) -> None:
        table = TokenTable(tokenizer)
        self.special_token_ids = [i for i in tokenizer.special_ids if i < vocab_size]
        hidden = {*self.special_token_ids, *end_ids}
        self.tokens = [b"" if i in hidden else table.raw_bytes(i) for i in range(vocab_size)]
        self.eos_token_id = end_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self._tokenizer = tokenizer
        self._ids = {raw: i for i, raw in enumerate(self.tokens) if raw}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        """Return ids that spell `text` inside an answer, or its beginning.

        They are without the space that some tokenizers put before the first word.
        """
        lead = self._tokenizer.encode(_MARK, add_special_tokens=False)
        ids = self._tokenizer.encode(_MARK + text, add_special_tokens=False)
        rest = ids[len(lead) :]
        if ids[: len(lead)] == lead and b"".join(self.tokens[i] for i in rest) == text.encode():
            return rest
        return self._longest_matches(text.encode())

    def _longest_matches(self, raw: bytes) -> list[int]:
        found: list[int] = []
        while raw:
            ends = range(min(len(raw), self._longest), 0, -1)
            size = next((end for end in ends if raw[:end] in self._ids), 0)
            if not size:
                break
            found.append(self._ids[raw[:size]])
            raw = raw[size:]
        return found


def _source(grammar: Grammar) -> str:
    """Return the grammar in llguidance's own form. Raises GrammarError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if len(grammar.text) > MAX_GRAMMAR_CHARS:
        raise GrammarError(
            f"the {grammar.kind} has {len(grammar.text)} characters; at most {MAX_GRAMMAR_CHARS}"
        )
    check_limits(grammar)
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            # Compact: white space without end would be in its grammar, and fill the answer.
            options: JsonCompileOptions = {"whitespace_flexible": False}
            try:
                return LLMatcher.grammar_from_json_schema(grammar.text, overrides=options)
            except ValueError as error:
                raise GrammarError(f"the json_schema is no JSON object: {error}") from error
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.EBNF:
            try:
                return LLMatcher.grammar_from_lark(gbnf_to_lark(grammar.text))
            except Exception as error:  # it raises bare Exception for rules that are not there
                raise GrammarError(f"the ebnf cannot be used: {error}") from error
