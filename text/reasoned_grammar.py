"""The grammar of an answer that may think before it takes its form."""

import json
import re
from collections.abc import Mapping

from baton.core.grammar import Grammar, GrammarKind
from baton.text.grammar_rules import ANY_TEXT, json_rule, literal_rule, mark_rule
from baton.text.reasoning import ReasoningFormat, ReasoningState

_UNSLASHED = re.compile(r"\\.|[/\n]", re.S)


def behind_reasoning(
    grammar: Grammar,
    form: ReasoningFormat,
    thinking: ReasoningState,
    special: Mapping[str, int],
) -> Grammar:
    """Return the grammar of free text up to the end of reasoning, its mark, then `grammar`.

    Reasoning that no template opened may be left out.

    grammar: one that compiles by itself
    special: the ids of the marks that are special tokens
    """
    if thinking is ReasoningState.CLOSED:
        return grammar
    start = "thoughts"
    if thinking is ReasoningState.FREE:
        start = f"(gap {mark_rule(form.begin, special)} thoughts)?"
    thoughts = "thought"
    lines = [f"thought[suffix={literal_rule(form.end)}]: {ANY_TEXT}"]
    if form.end in special:  # its text ends reasoning too, as the parser of the answer has it
        thoughts = f"(thought | THOUGHT <[{special[form.end]}]>)"
        slashed = re.escape(form.end).replace("/", "\\/")
        lines.append(f"THOUGHT: {ANY_TEXT} & ~/(.|\\n)*{slashed}(.|\\n)*/")
    lines = [
        f"start: {start} form",
        f"thoughts: {thoughts} gap",
        *lines,
        "gap: /[ \\t\\r\\n]{0,4}/",  # models write line breaks there
        f"form: {_inside(grammar)}",
    ]
    return Grammar(GrammarKind.LARK, "\n".join(lines))


def _inside(grammar: Grammar) -> str:
    """Return the grammar as what a rule says."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return json_rule(json.loads(grammar.text))
        case GrammarKind.REGEX:
            return f"%lark {{\nstart: /{_UNSLASHED.sub(_escaped, grammar.text)}/\n}}"
        case GrammarKind.LARK:
            return f"%lark {{\n{grammar.text}\n}}"
        case GrammarKind.EBNF:
            return f"%lark {{\n{gbnf_to_lark(grammar.text)}\n}}"


def _escaped(found: re.Match[str]) -> str:
    """Return a slash or a line break as an expression between slashes has it."""
    text = found[0]
    if text[-1] == "\n":
        return "\\n"
    return "\\/" if text == "/" else text
