"""The tools of `/v1/responses`: functions, those in namespaces, and custom ones.

A model is told of functions alone. One of a namespace has both names, joined; a custom one, whose
input is free text, has that text as its only argument. The reply has the client's own names again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema

from baton.api.errors import refused, shorten
from baton.api.fields.inner_fields import RESPONSES_TOOL, known_only
from baton.api.fields.request_fields import FieldCheck, UnknownFields

_JOINT = "__"
CUSTOM_INPUT = "input"
"""The argument that holds the text of a custom tool."""
_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
_OF_FUNCTION = ("name", "description", "parameters", "strict")


@dataclass(frozen=True)
class ClientTool:
    """A tool that the client runs."""

    sent: Mapping[str, Any]  # as the client wrote it
    own_name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def name(self) -> str:
        """Return the name that the model knows."""
        return flat_name(self.own_name, self.namespace)

    def function(self) -> dict[str, Any]:
        """Return the function in the form of chat completions, keys in the client's order."""
        found = {name: each for name, each in self.sent.items() if name in _OF_FUNCTION}
        if self.custom:
            found["parameters"] = _CUSTOM_SCHEMA
        return {"type": "function", "function": found | {"name": self.name}}


def flat_name(name: str, namespace: object) -> str:
    """Return the name of a tool, with its namespace before it if it has one."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return namespace + ("" if namespace.endswith("_") else _JOINT) + name


def read_tools(given: object, info: ValidationInfo) -> tuple[ClientTool, ...]:
    """Return the tools that the client runs. Raises `ApiError` for those that a server would have
    to run, unless they are left out."""
    if not isinstance(given, list):
        raise refused("tools", "tools: Input should be a valid array")
    check = info.context or FieldCheck()
    return tuple(
        tool for number, each in enumerate(given) for tool in _read(each, f"tools.{number}", check)
    )


_SCHEMA = {"type": "array", "items": {"type": "object", "properties": {"type": {"type": "string"}}}}
ClientTools = Annotated[tuple[ClientTool, ...], PlainValidator(read_tools), WithJsonSchema(_SCHEMA)]


def _read(
    given: object, where: str, check: FieldCheck, namespace: str | None = None
) -> Iterator[ClientTool]:
    if not isinstance(given, Mapping):
        raise refused(where, f"{where}: Input should be an object")
    kind = given.get("type")
    tool: Mapping[str, Any] = given
    if kind in ("function", "custom", "namespace"):
        tool = known_only(given, RESPONSES_TOOL, check, where, "tools")
    name, inner = tool.get("name"), tool.get("tools")
    named = isinstance(name, str)
    if named and kind in ("function", "custom"):
        if not isinstance(tool.get("parameters"), dict | None):
            place = f"{where}.parameters"
            raise refused(place, f"{place}: Input should be an object")
        yield ClientTool(tool, str(name), namespace, kind == "custom")
    elif named and kind == "namespace" and isinstance(inner, list) and namespace is None:
        for number, each in enumerate(inner):
            yield from _read(each, f"{where}.tools.{number}", check, str(name))
    elif (
        check.policy is UnknownFields.REFUSE
        or not isinstance(kind, str)
        or (kind in ("function", "custom", "namespace"))
    ):
        raise refused(
            where,
            f"{where} has type {shorten(repr(kind))}; expected a function with a name: this "
            "server runs no tools of its own",
        )
    else:
        check.leave_out(f"tools[{kind}]")
