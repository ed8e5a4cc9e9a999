"""Limits on a grammar, checked before it is compiled: what would take too long, or fits no answer.

A repeat of a repeat of a literal is spelt out while it is compiled: a thousand times a thousand
times takes seconds, in which no stream of the process goes on.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError

MAX_REPEATS = 10_000
"""The most times that anything must occur, repeats of repeats multiplied."""
_COUNT = re.compile(r"\{\s*(\d+)\s*(,?)\s*(\d*)\s*\}")
_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/|\[(?:\\.|[^\]\\])*\]|[A-Za-z_][\w-]*|\{[^}]*\}|\S'
)
_RULE = re.compile(
    r"^[ \t]*[?!]?([A-Za-z_][\w-]*)[ \t]*:(?::=)?(.*?)"
    r"(?=^[ \t]*[?!]?[A-Za-z_][\w-]*[ \t]*:|\Z)",
    re.M | re.S,
)
_DEPTH = 100  # of rules that name one another
_EBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=(.*?)(?=^[ \t]*[\w-]+[ \t]*::=|\Z)", re.M | re.S)
_COMMENT = re.compile(r"#[^\n]*")
_DATA = ("const", "enum", "default", "examples")
_INTO_DATA = re.compile("/(?:const|enum|default|examples)")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LENGTHS = ("minLength", "minItems", "minProperties", "minContains")


def check_limits(grammar: Grammar) -> None:
    """Raise GrammarError that says which part of a grammar is too large, or empty."""
    match grammar.kind:
        case GrammarKind.REGEX:
            check_regex(grammar.text, "the regex")
        case GrammarKind.EBNF:
            _check_empty_rules(grammar.text)
            _check_rules(grammar.text, "the ebnf")
        case GrammarKind.LARK:
            _check_rules(grammar.text, "the lark")
        case GrammarKind.JSON_SCHEMA:
            for name, value in _members(grammar.text):
                if name == "pattern" and isinstance(value, str):
                    check_regex(value, "the pattern")
                if isinstance(value, int | float):
                    check_count(name, value)


def check_count(keyword: str, value: float) -> None:
    """Refuse a schema that wants too many characters, items or members."""
    if keyword in _LENGTHS and value > MAX_REPEATS:
        raise GrammarError(f"{keyword} is {value!s:.20}; at most {MAX_REPEATS}")


def check_regex(text: str, what: str) -> None:
    """Refuse a repeat of a repeat without brackets, as Python does too, and a large one."""
    sizes = [1]  # of each open group: the most times that anything in it must occur
    last = 1  # of the newest item
    repeated, at = False, 0
    while at < len(text):
        char = text[at]
        count = _COUNT.match(text, at)
        if count is not None or char in "*+?":
            if repeated:
                raise GrammarError(
                    f"{what} has a repeat of a repeat at character {at}: use brackets"
                )
            last *= int(count[1]) if count is not None else 1
            at = count.end() if count is not None else at + 1
            at += text[at : at + 1] == "?"  # lazy
            repeated = True
        else:
            repeated = False
            if char == "(":
                sizes.append(1)
                last = 1
            elif char == ")" and len(sizes) > 1:
                last = sizes.pop()
            else:
                last = 1
            at = _set_end(text, at) if char == "[" else at + (2 if char == "\\" else 1)
        if last > MAX_REPEATS:
            raise GrammarError(f"{what} repeats something {last} times; at most {MAX_REPEATS}")
        sizes[-1] = max(sizes[-1], last)


def _set_end(text: str, at: int) -> int:
    """Return the position after the set in brackets that begins at `at`."""
    at += 1 + (text[at + 1 : at + 2] == "^")
    at += text[at : at + 1] == "]"
    while at < len(text) and text[at] != "]":
        at += 2 if text[at] == "\\" else 1
    return at + 1


def _check_rules(text: str, what: str) -> None:
    """Refuse rules that repeat something too often, where one rule repeats another that repeats."""
    bodies = {rule[1]: _COMMENT.sub("", rule[2]) for rule in _RULE.finditer(text)}
    sizes: dict[str, int] = {}

    def size_of(name: str, depth: int) -> int:
        """Return the most times that anything in a rule must occur."""
        if name not in bodies or depth > _DEPTH:
            return 1
        if name not in sizes:
            sizes[name] = 1  # where it names itself
            sizes[name] = _most(bodies[name], lambda other: size_of(other, depth + 1))
        return sizes[name]

    for name in bodies:
        if size_of(name, 0) > MAX_REPEATS:
            raise GrammarError(
                f"{what}'s rule {name} repeats something {sizes[name]} times, by the rules that it "
                f"names; at most {MAX_REPEATS}"
            )


def _most(body: str, size_of: Callable[[str], int]) -> int:
    """Return the most times that anything in a rule's body must occur."""
    groups, last, most = [1], 1, 1
    for token in _TOKEN.findall(body):
        count = _COUNT.fullmatch(token)
        if count is not None:
            last *= int(count[1])
        elif token == "(":
            groups.append(1)
        elif token == ")" and len(groups) > 1:
            last = groups.pop()
        elif token not in "*+?":
            last = size_of(token) if token[0].isalpha() else 1
        groups[-1] = max(groups[-1], last)
        most = max(most, last)
    return most


def _check_empty_rules(text: str) -> None:
    for rule in _EBNF_RULE.finditer(text):
        if not _COMMENT.sub("", rule[2]).strip():
            raise GrammarError(f'the ebnf\'s rule {rule[1]} is empty; write "" for no text')


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the keywords of all schemas in a JSON text, with their values.

    Data is left out, unless a reference may make a schema of it.
    """
    try:
        stack: list[tuple[Any, bool]] = [(json.loads(text), False)]  # and if it maps any names
    except (ValueError, RecursionError):
        return  # llguidance says what is wrong
    data = () if _INTO_DATA.search(text) else _DATA
    while stack:
        value, maps = stack.pop()
        if isinstance(value, list):
            stack += [(each, False) for each in value]
        elif isinstance(value, dict) and maps:
            stack += [(each, False) for each in value.values()]
        elif isinstance(value, dict):
            for name, each in value.items():
                if name not in data:
                    yield name, each
                    stack.append((each, name in _MAPS))
