"""The form that an answer must have, as the client described it."""

from dataclasses import dataclass
from enum import StrEnum


class GrammarKind(StrEnum):
    """The language of `Grammar.text`."""

    JSON_SCHEMA = "json_schema"  # the text is the schema
    REGEX = "regex"  # the whole answer matches it
    LARK = "lark"  # llguidance's dialect of Lark
    EBNF = "ebnf"  # GBNF, as llama.cpp and SGLang write grammars


@dataclass(frozen=True)
class Grammar:
    """A grammar as the client sent it. `baton.text.grammar` compiles it."""

    kind: GrammarKind
    text: str
