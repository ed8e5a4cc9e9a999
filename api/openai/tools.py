"""The tools of chat completions. Templates get them as they were sent, keys in their order."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from baton.api.errors import refused
from baton.api.fields.inner_fields import TOOL_FUNCTION, known_only
from baton.api.fields.request_fields import FieldCheck, UnknownFields
from baton.api.openai.tool_choice import ToolJson

_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {"anyOf": [{"type": "object"}, {"type": "null"}]},
                },
                "required": ["name"],
            },
        },
        "required": ["type", "function"],
    },
}


def read_tools(given: object, info: ValidationInfo) -> list[ToolJson]:
    """Return the tools of a body. Those that a server would have to run are left out, if the rule
    for unknown fields allows it. Raises `ApiError`."""
    if not isinstance(given, list):
        raise refused("tools", "tools: Input should be a valid array")
    check = info.context or FieldCheck()
    found = [_tool(each, f"tools.{number}", check) for number, each in enumerate(given)]
    return [tool for tool in found if tool is not None]


Tools = Annotated[list[ToolJson], PlainValidator(read_tools), WithJsonSchema(_SCHEMA)]


def _tool(given: object, where: str, check: FieldCheck) -> ToolJson | None:
    if not isinstance(given, dict):
        raise refused(where, f"{where}: Input should be an object")
    given = _wrapped(given)
    kind = given.get("type")
    if kind == "custom" and isinstance(given.get("custom"), Mapping):
        custom = known_only(
            given["custom"], TOOL_FUNCTION, check, f"{where}.custom", "tools.custom"
        )
        return _of_custom(custom, f"{where}.custom")
    if kind != "function":
        if (
            isinstance(kind, str)
            and "function" not in given
            and check.policy is not UnknownFields.REFUSE
        ):
            check.leave_out(f"tools[{kind}]")
            return None
        raise refused(f"{where}.type", f"{where}.type: Input should be 'function'")
    function = known_only(
        given.get("function"), TOOL_FUNCTION, check, f"{where}.function", "tools.function"
    )
    if not isinstance(function, Mapping):
        why = "Field required" if function is None else "Input should be an object"
        raise refused(f"{where}.function", f"{where}.function: {why}")
    if not isinstance(function.get("name"), str):
        raise refused(f"{where}.function.name", f"{where}.function.name: expected a string")
    if not isinstance(function.get("parameters"), dict | None):
        place = f"{where}.function.parameters"
        raise refused(place, f"{place}: Input should be an object")
    return {**given, "function": function}


def _wrapped(given: dict[str, Any]) -> dict[str, Any]:
    """Return a function as chat completions have it: some clients leave the type out, some send
    what Responses has, whose function stands beside its type."""
    if given.get("type") is None and "function" in given:
        return {"type": "function"} | {k: v for k, v in given.items() if k != "type"}
    if given.get("type") == "function" and "function" not in given and "name" in given:
        function = {name: value for name, value in given.items() if name != "type"}
        return {"type": "function", "function": function}
    return given


def _of_custom(custom: Mapping[str, Any], where: str) -> ToolJson:
    """Return a tool whose input is free text as a function, whose only argument that text is."""
    name, description = custom.get("name"), custom.get("description")
    if not isinstance(name, str):
        raise refused(f"{where}.name", f"{where}.name: expected a string")
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"type": "function", "function": function | {"parameters": schema}}
