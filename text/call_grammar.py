"""The grammar of tool calls in the form that a model's chat template teaches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.text.grammar_rules import ANY_TEXT, json_rule, literal_rule, mark_rule
from baton.text.tool_calls import CallStyle, ToolFormat
from baton.text.typed_values import allowed_values, properties_of

Schema = dict[str, Any]
_KEY = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_TAG_NAME = re.compile(r"(?!\s)[^<>\n]+(?<!\s)")
_PARTS = "#/$defs/"
_VALUE_END = "</parameter>"
_NO_TEXT = ["null", "boolean", "number", "object", "array"]


@dataclass(frozen=True)
class CallableTool:
    """A tool that an answer may call."""

    name: str
    parameters: Mapping[str, Any]  # the schema of its arguments, as the client sent it
    arguments: Schema  # the same as `RewrittenSchema.root`


@dataclass(frozen=True)
class CallableTools:
    """The tools that an answer may call, and what their arguments refer to as `$defs`."""

    tools: Sequence[CallableTool]
    parts: Schema

    def whole(self, schema: Schema) -> Schema:
        """Return a schema of a part of the tools with all that it refers to."""
        found: Schema = {}
        waiting: list[Any] = [schema]
        while waiting:
            each = waiting.pop()
            if isinstance(each, list):
                waiting += each
            elif isinstance(each, dict):
                waiting += each.values()
                name = str(each.get("$ref", "")).removeprefix(_PARTS)
                if name in self.parts and name not in found:
                    found[name] = self.parts[name]
                    waiting.append(found[name])
        return schema | {"$defs": found} if found else schema

    def call(self, key: str = "arguments") -> Schema:
        """Return the schema of one call in JSON, with its arguments as `key`."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, key: tool.arguments},
                "required": ["name", key],
                "additionalProperties": False,
            }
            for tool in self.tools
        ]
        return self.whole(calls[0] if len(calls) == 1 else {"anyOf": calls})

    def calls(self, *, parallel: bool) -> Schema:
        """Return the schema of a list of calls in JSON. parallel: there may be several."""
        one = self.call()
        shared = {"$defs": one.pop("$defs")} if "$defs" in one else {}
        most = {} if parallel else {"maxItems": 1}
        return {"type": "array", "minItems": 1, "items": one} | most | shared


def call_rules(
    form: ToolFormat, tools: CallableTools, special: Mapping[str, int], *, parallel: bool
) -> list[str]:
    """Return rules of llguidance's Lark for calls, of which `calls` is the first.

    special: the ids of the form's marks that are special tokens
    parallel: there may be several calls
    """
    return _Rules(form, tools, special, parallel).lines()


@dataclass(frozen=True)
class _Rules:
    """The rules of one form's calls."""

    form: ToolFormat
    tools: CallableTools
    special: Mapping[str, int]
    parallel: bool

    def lines(self) -> list[str]:
        begin, end = self._mark(self.form.begin), self._mark(self.form.end)
        match self.form.styles[0]:
            case CallStyle.JSON if self.form.together:
                return self._listed(begin, end)
            case CallStyle.JSON if self.form.bare:  # Llama's calls have no marks
                rules = [f"call: {json_rule(self.tools.call('parameters'))}"]
                return [f"calls: {self._several('call', '; ')}", *rules]
            case CallStyle.TAGS if self._have_names(_TAG_NAME, _TAG_NAME):
                one = f'{begin} "\\n" call "\\n" {end}'
                return [f"calls: {self._several(one, chr(10))}", *self._in_tags()]
            case CallStyle.JSON | CallStyle.TAGS:  # the latter has no word for a name
                rules = [f"call: {json_rule(self.tools.call())}"]
                one = f'{begin} "\\n" call "\\n" {end}'
                return [f"calls: {self._several(one, chr(10))}", *rules]
            case CallStyle.PYTHON if self._have_names(_NAME, _KEY):
                calls = f'{begin} "[" {self._several("call", ", ")} "]" {end}'
                return [f"calls: {calls}", *self._in_python()]
            case CallStyle.PYTHON:  # its other style
                return self._listed(begin, end)
            case CallStyle.KIMI:
                calls = self._several("call", "")
                return [f"calls: {begin} {calls} {end}", *self._of_kimi()]
            case CallStyle.DEEPSEEK:
                calls = self._several("call", "\n" if self.form.fenced else "")
                return [f"calls: {begin} {calls} {end}", *self._of_deepseek()]

    def _mark(self, mark: str) -> str:
        return mark_rule(mark, self.special) if mark else ""

    def _several(self, one: str, between: str) -> str:
        """Return one call, or several with a text between them where there may be."""
        return f"{one} ({literal_rule(between)} {one})*" if self.parallel else one

    def _listed(self, begin: str, end: str) -> list[str]:
        schema = self.tools.calls(parallel=self.parallel)
        return [f"calls: {begin} called {end}", f"called: {json_rule(schema)}"]

    def _of_kimi(self) -> list[str]:
        begin, middle, end = map(self._mark, self.form.inner)
        calls = [
            f"{begin} {literal_rule(f'functions.{tool.name}:')} NUMBER {middle} held_{n} {end}"
            for n, tool in enumerate(self.tools.tools)
        ]
        return [f"call: {' | '.join(calls)}", "NUMBER: /[0-9]{1,3}/", *self._held()]

    def _of_deepseek(self) -> list[str]:
        begin, middle, end = map(self._mark, self.form.inner)
        calls: list[str] = []
        for n, tool in enumerate(self.tools.tools):
            if self.form.fenced:
                name = literal_rule(f"{tool.name}\n```json\n")
                calls.append(f'{begin} "function" {middle} {name} held_{n} "\\n```" {end}')
            else:
                calls.append(f"{begin} {literal_rule(tool.name)} {middle} held_{n} {end}")
        return [f"call: {' | '.join(calls)}", *self._held()]

    def _held(self) -> list[str]:
        """Return a rule of each tool's arguments in JSON."""
        return [
            f"held_{n}: {json_rule(self.tools.whole(tool.arguments))}"
            for n, tool in enumerate(self.tools.tools)
        ]

    def _in_tags(self) -> list[str]:
        """Return the rules of calls in tags. Parameters come in the schema's order."""
        calls, values, rules = list[str](), dict[str, str](), list[str]()
        for n, tool in enumerate(self.tools.tools):
            name = literal_rule(f"<function={tool.name}>\n")
            text = f"text_{n}"
            rules += [f"{text}[suffix={literal_rule(_VALUE_END)}]: TEXT_{n}"]
            rules += [f"TEXT_{n}: {ANY_TEXT} & ~/{_no_value(tool, self.form.end)}/"]
            given: list[str] = []
            members = self._members(tool)
            if members is None:
                given.append(f'("<parameter=" /[^<>\\n]+/ ">\\n" {text} "\\n")*')
            for key, schema, needed in members or ():
                begin = literal_rule(f"<parameter={key}>\n")
                texts, others = _texts(key, tool)
                ends = [literal_rule(f"{each}\n{_VALUE_END}") for each in texts or ()]
                if texts is not None and others:
                    # A text that is listed comes as it is, and not in the quotes of JSON.
                    only = {"allOf": [schema, {"type": _NO_TEXT}]} if texts else schema
                    held = _rule_of(json_rule(self.tools.whole(only)), values)
                    ends.append(f'{held} "\\n{_VALUE_END}"')
                value = text if texts is None else _rule_of(" | ".join(ends), values)
                given.append(f'{begin} {value} "\\n"' if needed else f'({begin} {value} "\\n")?')
            calls.append(f'{name} {" ".join(given)} "</function>"')
        return [f"call: {' | '.join(calls)}", *rules, *_lines(values)]

    def _in_python(self) -> list[str]:
        """Return the rules of calls as Python has them. Arguments that are needed come first."""
        calls, values = list[str](), dict[str, str]()
        rules = [f"any: {json_rule({})}", "KEY: /[A-Za-z_][A-Za-z0-9_]*/"]
        for n, tool in enumerate(self.tools.tools):
            begin, members = literal_rule(f"{tool.name}("), self._members(tool)
            if members is None:
                calls.append(f'{begin} (KEY "=" any (", " KEY "=" any)*)? ")"')
                continue
            needed, others = list[str](), list[str]()
            for m, (key, schema, must) in enumerate(members):
                says = json_rule(self.tools.whole(schema))
                if schema == {"type": "boolean"}:
                    says = '"True" | "False" | "true" | "false"'
                rules.append(f"given_{n}_{m}: {literal_rule(f'{key}=')} {_rule_of(says, values)}")
                (needed if must else others).append(f"given_{n}_{m}")
            # `first` has no comma before its first argument, `more` has one before each.
            for at, other in enumerate(others):
                last = at + 1 == len(others)
                more, first = (
                    ("", "") if last else (f" more_{n}_{at + 1}", f" | first_{n}_{at + 1}")
                )
                rules.append(f'more_{n}_{at}: (", " {other})?{more}')
                if not needed:
                    rules.append(f"first_{n}_{at}: {other}{more}{first}")
            given = ' ", " '.join(needed)
            if others:
                given += f" more_{n}_0" if needed else f" first_{n}_0?"
            calls.append(f'{begin} {given} ")"')
        return [f"call: {' | '.join(calls)}", *rules, *_lines(values)]

    def _have_names(self, name: re.Pattern[str], key: re.Pattern[str]) -> bool:
        """Return whether all tools have names of this form, and their arguments of that one."""
        tools = self.tools.tools
        keys = {each for tool in tools for each in tool.arguments.get("properties", ())}
        keys |= {each for tool in tools for each, _, _ in self._members(tool) or ()}
        return all(name.fullmatch(tool.name) for tool in tools) and all(map(key.fullmatch, keys))

    def _members(self, tool: CallableTool) -> list[tuple[str, Schema, bool]] | None:
        """Return each argument's name, its schema and whether it must be given; None if the
        schema does not name all of them."""
        schema = tool.arguments
        reference = schema.get("$ref")
        if isinstance(reference, str):
            schema = self.tools.parts.get(reference.removeprefix(_PARTS), {})
        properties, needed = schema.get("properties", {}), schema.get("required", [])
        plain = schema.keys() <= {"type", "properties", "required", "additionalProperties"}
        properties = properties | {key: {} for key in needed if key not in properties}
        if not plain or not (properties or schema.get("additionalProperties") is False):
            return None
        shown = [(key, {} if each is True else each) for key, each in properties.items()]
        return [(key, each, key in needed) for key, each in shown if each is not False]


def _rule_of(says: str, values: dict[str, str]) -> str:
    """Return the name of the rule of a value, which all arguments of this kind share.

    Forty tools would have a grammar beyond its limit otherwise.
    """
    return values.setdefault(says, f"value_{len(values)}")


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"{name}: {says}" for says, name in values.items()]


def _texts(key: str, tool: CallableTool) -> tuple[tuple[str, ...] | None, bool]:
    """Return the texts that an argument may be, None for any text, and whether it may be something
    else than a text."""
    types, literals = allowed_values(key, tool.parameters)
    if "string" in types or not (types or literals):
        return None, True
    texts = tuple(each for each in literals if isinstance(each, str))
    return texts, bool(types) or len(texts) < len(literals)


def _no_value(tool: CallableTool, end: str) -> str:
    """Return an expression of the texts that the reader of calls takes for more than a value: they
    have the end of the call, or another parameter of the tool, in them."""
    others = [re.escape(key) for key in properties_of(tool.parameters)]
    ends = [f"</function>\\s*{re.escape(end)}"]
    if others:
        ends.append(f"\\n<parameter=\\s*({'|'.join(others)})\\s*>")
    return f"(.|\\n)*({'|'.join(ends)})(.|\\n)*".replace("/", "\\/")
