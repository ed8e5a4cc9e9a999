"""The tools of chat completions. Templates get them as they were sent, keys in their order."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from baton.api.errors import refused
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


def read_tools(given: object) -> list[ToolJson]:
    """Return the tools of a body. Raises `ApiError`."""
    if not isinstance(given, list):
        raise refused("tools", "tools: Input should be a valid array")
    return [_tool(each, f"tools.{number}") for number, each in enumerate(given)]


Tools = Annotated[list[ToolJson], PlainValidator(read_tools), WithJsonSchema(_SCHEMA)]


def _tool(given: object, where: str) -> ToolJson:
    if not isinstance(given, dict):
        raise refused(where, f"{where}: Input should be an object")
    if given.get("type") != "function":
        raise refused(f"{where}.type", f"{where}.type: Input should be 'function'")
    function = given.get("function")
    if not isinstance(function, Mapping):
        why = "Field required" if function is None else "Input should be an object"
        raise refused(f"{where}.function", f"{where}.function: {why}")
    if not isinstance(function.get("name"), str):
        raise refused(f"{where}.function.name", f"{where}.function.name: expected a string")
    if not isinstance(function.get("parameters"), dict | None):
        place = f"{where}.function.parameters"
        raise refused(place, f"{place}: Input should be an object")
    return given
