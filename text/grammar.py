"""What an answer must look like: a JSON schema, a regular expression or a grammar.

A compiled grammar says, before each token, which tokens may come. llguidance does the parsing; it
is imported where the first grammar is made, so that this room needs it for nothing else.
"""

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from baton.text.errors import GrammarError
from baton.text.token_table import TokenTable
from baton.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

MAX_GRAMMAR_CHARS = 1 << 16
MAX_SYMBOLS = 60_000
"""Of a compiled grammar. llguidance 1.9 panics past 65,525, after a second of work."""
WORD_BITS = 64
_KEPT = 16  # compiled grammars, and those that could not be
_MARK = "\x02"  # in no word: what follows it is not at the beginning of a text


class GrammarKind(StrEnum):
    JSON_SCHEMA = "json_schema"  # the text is the schema
    REGEX = "regex"  # the whole answer matches it
    LARK = "lark"  # llguidance's dialect of Lark
    EBNF = "ebnf"  # GBNF, as llama.cpp and SGLang write grammars


@dataclass(frozen=True)
class Grammar:
    """As the client gave it, unchanged to the end."""

    kind: GrammarKind
    text: str


class CompiledGrammar:
    """Answers begin from it; it never changes."""

    def __init__(self, matcher: "LLMatcher", words: int) -> None:
        self._matcher = matcher
        self._words = words

    def start(self, given: Sequence[int] = ()) -> "GrammarState":
        """At the beginning of an answer, or behind the tokens that are `given`. A copy: quick
        enough for the engine's thread. Raises GrammarError where they do not fit, or the model has
        no token that could come next."""
        state = GrammarState(self._matcher.deep_copy(), self._words)
        for token in given:
            state.push(token)
        if not state.ended:
            state.allowed()
        return state


class GrammarCompiler:
    """For one tokenizer. Any thread may call it; one grammar is compiled at a time."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Iterable[int]) -> None:
        """vocab_size: the model's, which may have more ids than the tokenizer
        end_ids: ids that end an answer; they may come where the grammar is satisfied
        """
        self.words = -(-vocab_size // WORD_BITS)
        """Of a mask: bit `i % 64` of word `i // 64` is set where token `i` may come."""
        self._vocab_size = vocab_size
        self._end_ids = sorted(token for token in end_ids if token < vocab_size)
        self._tokenizer = tokenizer
        self._table: LLTokenizer | None = None
        self._compiling = threading.Lock()
        self._keeping = threading.Lock()  # held for a moment only
        self._kept: OrderedDict[Grammar, CompiledGrammar | GrammarError] = OrderedDict()

    def kept(self, grammar: Grammar) -> CompiledGrammar | None:
        """If it was compiled before. Raises GrammarError if that failed."""
        with self._keeping:
            found = self._kept.get(grammar)
            if found is not None:
                self._kept.move_to_end(grammar)
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))  # its own trace, not that of whoever asked first
        return found

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Raises GrammarError that says what is wrong with it.

        A large one takes a quarter of a second, during which the interpreter is free for other
        threads; whoever asks again has it at once.
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
        compiled = CompiledGrammar(matcher, self.words)
        compiled.start()
        return compiled

    def _tokens(self) -> "LLTokenizer":
        """The bytes of every token, read once."""
        if not self._end_ids:
            raise GrammarError(
                "this model names no end-of-sequence token, which structured output ends with"
            )
        if self._table is None:
            from llguidance import LLTokenizer, TokenizerWrapper

            self._table = LLTokenizer(
                TokenizerWrapper(_Tokens(self._tokenizer, self._vocab_size, self._end_ids)),
                n_vocab=self._vocab_size,
                eos_token=self._end_ids,
            )
        return self._table


class GrammarState:
    """How far one answer has come. Rebuilt from the answer's tokens, so it never travels."""

    def __init__(self, matcher: "LLMatcher", words: int) -> None:
        self._matcher = matcher
        self._words = words
        self._allowed: array[int] | None = None  # until the next token

    @property
    def ended(self) -> bool:
        """It is satisfied, and nothing may follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> "array[int]":
        """Which tokens may come next: 64 a word, see `GrammarCompiler.words`. Not of one that has
        ended. Raises GrammarError where the model has none that could, as happens with a vocabulary
        of whole words, or the grammar grew too complex; asked again, it says the same."""
        if self._allowed is None:
            size = self._words * WORD_BITS // 8
            mask = self._matcher.compute_bitmask()[:size].ljust(size, b"\0")
            if self._matcher.is_error():  # the mask then lets the answer end as if it were whole
                raise GrammarError(
                    "the answer cannot go on: no token of this model spells what its grammar wants "
                    f"next ({self._matcher.get_error().splitlines()[0]})"
                )
            self._allowed = array("q", mask)
        return self._allowed

    def push(self, token_id: int) -> None:
        """The next token. Raises GrammarError where it may not come, or the grammar grew too
        complex."""
        self._allowed = None
        if not self._matcher.consume_token(token_id):
            why = self._matcher.get_error().partition("\n")[0]
            raise GrammarError(f"the answer has left its grammar: {why}")


class _Tokens:
    """A vocabulary as llguidance reads it."""

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
        """The ids of `text` inside an answer: without the space that some tokenizers put before
        the first word. They spell its bytes, or its beginning, whatever the tokenizer does."""
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
    """In llguidance's own form. Raises GrammarError."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    if len(grammar.text) > MAX_GRAMMAR_CHARS:
        raise GrammarError(
            f"the {grammar.kind} has {len(grammar.text)} characters; at most {MAX_GRAMMAR_CHARS}"
        )
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
            except (GbnfToLarkError, RecursionError) as error:
                raise GrammarError(f"the ebnf cannot be used: {error}") from error
