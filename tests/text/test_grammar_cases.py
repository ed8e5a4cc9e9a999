"""Grammars as clients send them, on a model with a full tokenizer, and some that are unusable."""

import json
import random
import re
from pathlib import Path

import pytest
import toy_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from baton.core.grammar import Grammar, GrammarKind
from baton.text.errors import GrammarError
from baton.text.grammar import GrammarCompiler
from baton.text.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
JSON_EBNF = r"""
root ::= object
object ::= "{" ws "\"name\"" ws ":" ws string ws "," ws "\"age\"" ws ":" ws number ws "}"
string ::= "\"" [a-zA-Z ]{1,12} "\""
number ::= [1-9] [0-9]?
ws ::= " "?
"""
EBNF = {
    'root ::= "Hello" | "Hi" | "Hey"': "Hello|Hi|Hey",
    'root ::= "The capital is " city "."\ncity ::= "Paris" | "Rome"':
        r"The capital is (Paris|Rome)\.",
    'root ::= [a-z]{1,8} "@" [a-z]{1,8} "." ("com" | "org")': r"[a-z]{1,8}@[a-z]{1,8}\.(com|org)",
    'root ::= "(" [0-9]{3} ") " [0-9]{3} "-" [0-9]{4}': r"\(\d{3}\) \d{3}-\d{4}",
    'root ::= year "-" month  # a date\nyear ::= [0-9]{4}\nmonth ::= [0-1] [0-9]':
        r"\d{4}-[01]\d",
    'root ::= item ("," item){0,3}\nitem ::= "a"+ | "b"': "(a+|b)(,(a+|b)){0,3}",
    JSON_EBNF: r'\{ ?"name" ?: ?"[a-zA-Z ]{1,12}" ?, ?"age" ?: ?[1-9]\d? ?\}',
}  # fmt: skip
SCHEMAS = [
    {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[\\w]{1,9}$"},
     "population": {"type": "integer", "minimum": 0, "maximum": 99999}},
     "required": ["name", "population"], "additionalProperties": False},
    {"type": "array", "items": {"enum": ["a", "b", None, 3]}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 5, "maximum": 20}]},
    {"$defs": {"n": {"type": "null"}}, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}},
     "required": ["a"], "additionalProperties": False},
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> GrammarCompiler:
    """A byte-level BPE of 2,000 tokens, trained here on this project's documents."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=2000,
        special_tokens=toy_tokenizer.SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    backend.train_from_iterator(texts, trainer)
    folder = toy_tokenizer.save_folder(tmp_path_factory.mktemp("full"), backend)
    tokenizer = Tokenizer.from_folder(folder)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.stop_ids)


def answer(compiler: GrammarCompiler, grammar: Grammar, rng: random.Random) -> str:
    """Return a random answer that the grammar allows; tokens at random, ends where it can."""
    tokenizer, state = compiler._tokenizer, compiler.compile(grammar).start()
    ids: list[int] = []
    while not state.ended and len(ids) < 400:
        mask = state.allowed()
        allowed = [i for i in range(tokenizer.vocab_size) if mask[i // 64] >> i % 64 & 1]
        ends = [i for i in allowed if i in tokenizer.stop_ids]
        if ends:
            break
        ids.append(rng.choice(allowed))
        state.push(ids[-1])
    return tokenizer.decode(ids)


@pytest.mark.parametrize("ebnf", EBNF)
def test_sglangs_kinds_of_ebnf(compiler: GrammarCompiler, ebnf: str) -> None:
    for seed in range(5):
        said = answer(compiler, Grammar(GrammarKind.EBNF, ebnf), random.Random(seed))
        assert re.fullmatch(EBNF[ebnf], said), said


@pytest.mark.parametrize("schema", SCHEMAS)
def test_sglangs_kinds_of_json_schema(compiler: GrammarCompiler, schema: object) -> None:
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    for seed in range(5):
        json.loads(answer(compiler, grammar, random.Random(seed)))


UNUSABLE = [
    (GrammarKind.EBNF, "", "No 'root' rule found"),
    (GrammarKind.EBNF, 'a ::= "x"', "No 'root' rule found"),
    (GrammarKind.EBNF, "root ::= a b", "Rule 'a' not found"),
    (GrammarKind.EBNF, "root ::= ", "rule root is empty"),
    (GrammarKind.EBNF, "root ::= a\na ::=   # nothing\n", "rule a is empty"),
    (GrammarKind.EBNF, 'root ::= ""', "no answer but the empty one"),
    (GrammarKind.EBNF, "root ::= root", "no text fits it"),
    (GrammarKind.EBNF, 'root ::= a{1000}\na ::= "x"{1000}', "repeats something 1000000 times"),
    (GrammarKind.EBNF, 'root ::= "x"{1000000000}', "at most 10000"),
    (GrammarKind.LARK, "", "Empty grammar"),
    (GrammarKind.LARK, "start: a", "unknown name"),
    (GrammarKind.LARK, 'start: ""', "no answer but the empty one"),
    (GrammarKind.LARK, 'start: a{1000}\na: ("x" b){1000}\nb: "y"', "repeats something"),
    (GrammarKind.REGEX, "", "no answer but the empty one"),
    (GrammarKind.REGEX, "(a|a)*{1000}", "repeat of a repeat"),
    (GrammarKind.REGEX, "a++", "repeat of a repeat"),
    (GrammarKind.REGEX, "a{1000000000}", "at most 10000"),
    (GrammarKind.REGEX, "((a{100}){100}){100}", "at most 10000"),
    (GrammarKind.JSON_SCHEMA, '{"type": "string", "minLength": 1000000000}', "is 1000000000; at"),
    (GrammarKind.JSON_SCHEMA, '{"items": {"minItems": 1e9, "type": "array"}}', "minItems is"),
    (GrammarKind.JSON_SCHEMA, '{"pattern": "(a{200}){200}"}', "the pattern repeats"),
    (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "no text fits it"),
    (GrammarKind.JSON_SCHEMA, '{"enum": []}', "Unsatisfiable"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "said"), UNUSABLE)
def test_what_is_wrong_with_a_grammar_is_said(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, said: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(said)):
        compiler.compile(Grammar(kind, text))


@pytest.mark.parametrize(
    "regex",
    [r"[*+?]{2}", r"a\*{3}b+?", r"(a+)*", r"[]{2}]{3}", r"\w{1,500}", r"a{0,3}|b{2,}?", r"x\\{2}"],
)
def test_repeats_that_are_no_repeats_of_repeats_are_left_alone(
    compiler: GrammarCompiler, regex: str
) -> None:
    compiler.compile(Grammar(GrammarKind.REGEX, regex))


def test_a_property_may_have_the_name_of_a_limit(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"minLength": {"type": "integer"}}}
    compiler.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
