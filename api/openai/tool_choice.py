"""The tools that an answer may or must call, and the grammars that force it to."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.api.errors import refused, shorten
from baton.api.json_schemas import JsonSchemas, checked_text, schema_text
from baton.core.grammar import Grammar, GrammarKind
from baton.text.call_grammar import CallableTool, CallableTools, call_rules
from baton.text.grammar_rules import json_rule
from baton.text.tool_calls import ToolFormat

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
        schema = self._tools(schemas).calls(parallel=self.parallel)
        return Grammar(GrammarKind.JSON_SCHEMA, schema_text(schema, "tools"))

    def grammar_beside(
        self,
        answer: Grammar,
        form: ToolFormat,
        special: Mapping[str, int],
        schemas: JsonSchemas,
    ) -> Grammar:
        """Return the grammar of an answer that is calls in the model's form, or follows `answer`,
        a JSON schema. Raises `ApiError`.

        special: the ids of the form's marks that are special tokens
        """
        calls = call_rules(form, self._tools(schemas), special, parallel=self.parallel)
        lines = ["start: calls | answer", *calls, f"answer: {json_rule(json.loads(answer.text))}"]
        return Grammar(GrammarKind.LARK, checked_text("\n".join(lines), "tools"))

    def _tools(self, schemas: JsonSchemas) -> CallableTools:
        """Return the callable tools. Raises `ApiError`."""
        tools: list[CallableTool] = []
        parts: dict[str, Any] = {}
        for number, tool in enumerate(self.callable):
            function = tool["function"]
            parameters = _parameters(function)
            found = schemas.rewritten(
                parameters,
                "tools",
                strict=function.get("strict") is True,
                name=f"tool{number}_",
                place="tools.schema",
                of=f"the schema of {shorten(function['name'])}",
            )
            parts |= found.parts
            tools.append(CallableTool(function["name"], parameters, found.root))
        return CallableTools(tools, parts)


def tool_rule(
    tools: Sequence[ToolJson], choice: str | Mapping[str, Any] | None, parallel: bool
) -> ToolRule | None:
    """Return the rule of `tools` and OpenAI's `tool_choice`; None if no tool may be called.

    Raises `ApiError` for a choice that is not one.
    """
    given, choice = list(tools), _openais(choice)
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


def _openais(choice: str | Mapping[str, Any] | None) -> str | Mapping[str, Any] | None:
    """Return a choice that a client wrote as other APIs have it, in the form of chat completions.

    Mistral's says `any`; Anthropic's has objects of a type, which agents send here too; Responses
    puts a function's name beside its type.
    """
    if isinstance(choice, str):
        return "required" if choice == "any" else choice
    kind = None if choice is None else choice.get("type")
    if choice is None or not isinstance(kind, str):
        return choice
    if kind in ("auto", "none", "required", "any"):
        return "required" if kind == "any" else kind
    if kind in ("tool", "function") and "function" not in choice:
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


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


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, an object. Without one, it has no arguments."""
    given: dict[str, Any] | None = function.get("parameters")
    if not given:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object"} | given
