"""The tools that an answer may or must call, and the grammars that force it to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.api.errors import refused, shorten
from baton.api.json_schemas import JsonSchemas, schema_text
from baton.core.grammar import Grammar, GrammarKind
from baton.text.tool_calls import JsonInside, ToolFormat

_COMPACT = {"x-guidance": {"whitespace_flexible": False}}
"""llguidance's option: white space without end would be in the grammar."""

ToolJson = dict[str, Any]
"""A tool in the form of chat completions: {"type": "function", "function": {...}}."""


@dataclass(frozen=True)
class ToolRule:
    """The rule of one request for calls of tools."""

    offered: list[ToolJson]  # those that the template shows the model; not empty
    callable: list[ToolJson]  # those that a forced answer may call
    forced: bool  # the answer must be calls
    parallel: bool  # an answer may have several calls

    def calls_grammar(self, schemas: JsonSchemas) -> Grammar:
        """Return the grammar of an answer that is a JSON list of calls and nothing else. Raises
        `ApiError`."""
        schema = _calls_schema(self, schemas)
        return Grammar(GrammarKind.JSON_SCHEMA, schema_text(schema, "tools"))

    def grammar_beside(self, answer: Grammar, tools: ToolFormat, schemas: JsonSchemas) -> Grammar:
        """Return the grammar of an answer that is calls in the model's form, or follows `answer`,
        a JSON schema. Raises `ApiError` if the form is no JSON between marks."""
        if tools.inside is JsonInside.NONE:
            raise refused(
                "tools",
                "this model's form of tool calls cannot be joined with a response_format; set "
                "tool_choice to required or none",
            )
        whole = tools.inside is JsonInside.CALLS
        schema = (_calls_schema if whole else _call_schema)(self, schemas)
        space = "" if whole else "\n"
        begin, end = json.dumps(tools.begin + space), json.dumps(space + tools.end)
        call = f"{begin} called" + (f" {end}" if len(end) > 2 else "")
        more = f' ("\\n" {call})*' if self.parallel and not whole else ""
        form = json.loads(answer.text)
        lines = [
            "start: calls | answer",
            f"calls: {call}{more}",
            f"called: %json {schema_text(schema | _COMPACT, 'tools')}",
            f"answer: %json {schema_text(form | _COMPACT, 'response_format')}",
        ]
        return Grammar(GrammarKind.LARK, "\n".join(lines))


def tool_rule(
    tools: Sequence[ToolJson], choice: str | Mapping[str, Any] | None, parallel: bool
) -> ToolRule | None:
    """Return the rule of `tools` and OpenAI's `tool_choice`; None if no tool may be called.

    Raises `ApiError` for a choice that is not one.
    """
    given = list(tools)
    if choice in (None, "auto", "none", "required"):
        if not given and choice == "required":
            raise refused("tool_choice", "tool_choice is 'required' but there are no tools")
        if not given or choice == "none":
            return None
        return ToolRule(given, given, choice == "required", parallel)
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if isinstance(choice, Mapping) and kind == "function":
        return ToolRule(given, _named(given, [choice.get("function")]), True, False)
    if isinstance(choice, Mapping) and kind == "allowed_tools":
        allowed = choice.get("allowed_tools")
        allowed = allowed if isinstance(allowed, Mapping) else {}
        mode, names = allowed.get("mode"), allowed.get("tools")
        if mode in ("auto", "required") and isinstance(names, list) and names:
            some = _named(given, [_part(each, "function") for each in names])
            return ToolRule(some, some, mode == "required", parallel)
    raise refused(
        "tool_choice",
        f"tool_choice is {shorten(repr(choice))}; expected 'auto', 'none', 'required', "
        '{"type": "function", "function": {"name": ...}} or allowed_tools',
    )


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


def _named(tools: Sequence[ToolJson], wanted: Sequence[Any]) -> list[ToolJson]:
    """Return the tools with these functions' names. Raises `ApiError` for an unknown one."""
    by_name = {tool["function"]["name"]: tool for tool in tools}
    names = [_part(each, "name") for each in wanted]
    for name in names:
        if not isinstance(name, str) or name not in by_name:
            raise refused(
                "tool_choice",
                f"tool_choice names {shorten(repr(name))}; expected one of the tools: "
                f"{shorten(', '.join(by_name)) or 'none are given'}",
            )
    return [by_name[name] for name in names]


def _calls_schema(rule: ToolRule, schemas: JsonSchemas) -> dict[str, Any]:
    one = _call_schema(rule, schemas)
    shared = {"$defs": one.pop("$defs")}
    most = {} if rule.parallel else {"maxItems": 1}
    return {"type": "array", "minItems": 1, "items": one} | most | shared


def _call_schema(rule: ToolRule, schemas: JsonSchemas) -> dict[str, Any]:
    """Return the schema of one call of any callable tool. The parts that each tool's parameters
    refer to stand in `$defs`."""
    calls: list[dict[str, Any]] = []
    defs: dict[str, Any] = {}
    for number, tool in enumerate(rule.callable):
        function = tool["function"]
        found = schemas.rewritten(
            _parameters(function),
            "tools",
            strict=function.get("strict") is True,
            name=f"tool{number}_",
            place="tools.schema",
            of=f"the schema of {shorten(function['name'])}",
        )
        defs |= found.parts
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function["name"]}, "arguments": found.root},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return one | {"$defs": defs}


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, an object. Without one, it has no arguments."""
    given: dict[str, Any] | None = function.get("parameters")
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object"} | given
