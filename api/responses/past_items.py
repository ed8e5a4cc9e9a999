"""Items of the input of `/v1/responses` that only OpenAI's own clients and tools write.

Calls that the client runs itself, as those of its shell, become calls of functions with the names
of their tools. What OpenAI's servers did is left out, as their tools are.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationInfo

from baton.api.errors import refused, shorten
from baton.api.fields.inner_fields import ITEM, known_only
from baton.api.fields.request_fields import FieldCheck, UnknownFields

Item = Mapping[str, Any]
_OF_SERVERS = frozenset(
    (
        "code_interpreter_call", "compaction", "computer_call", "computer_call_output",
        "file_search_call", "image_generation_call", "mcp_approval_request",
        "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output",
        "tool_search_call", "tool_search_output", "web_search_call",
    )
)  # fmt: skip
_CALLS = {
    "apply_patch_call": ("apply_patch", "operation"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
}
"""The tool of a call, and the call's field that holds the arguments."""
_OUTPUTS = frozenset(f"{call}_output" for call in _CALLS)


def read_items(given: object, info: ValidationInfo) -> object:
    """Return the items that the model is told of. Raises `ApiError` for the others, unless the rule
    for unknown fields allows to leave them out."""
    if not isinstance(given, list):
        return given
    check = info.context or FieldCheck()
    return [
        known_only(item, ITEM, check, f"input.{number}", "input")
        for number, each in enumerate(given)
        for item in _read(each, f"input.{number}", check)
    ]


def _read(item: object, where: str, check: FieldCheck) -> Iterator[object]:
    kind = item.get("type") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(kind, str):
        yield item
    elif kind in _CALLS:
        yield _call(item, *_CALLS[kind])
    elif kind in _OUTPUTS:
        output = {"call_id": _call_id(item), "output": _output(item)}
        yield {"type": "function_call_output", **output}
    elif kind == "mcp_call" and isinstance(item.get("output") or item.get("error"), str):
        call = {"name": item.get("name"), "arguments": item.get("arguments")}
        yield {"type": "function_call", "call_id": _call_id(item), **call}
        output = {"call_id": _call_id(item), "output": item.get("output") or item.get("error")}
        yield {"type": "function_call_output", **output}
    elif kind not in _OF_SERVERS:
        yield item
    elif check.policy is UnknownFields.REFUSE:
        raise refused(
            where,
            f"{where} has type {shorten(repr(kind))}: this server runs no tools of its own",
        )
    else:
        check.leave_out(f"input[{kind}]")


def _call(item: Item, tool: str, field: str) -> Item:
    found = item.get(field)
    arguments = found
    if isinstance(found, Mapping) and tool == "local_shell":  # its type is always `exec`
        arguments = {name: each for name, each in found.items() if name != "type"}
    call = {"call_id": _call_id(item), "name": tool, "arguments": arguments}
    return {"type": "function_call", **call}


def _call_id(item: Item) -> object:
    """Return the id that a call and its output share. Some items have no other than their own."""
    return item.get("call_id") or item.get("id")


def _output(item: Item) -> object:
    """Return the text of an output: that of a shell is a list of what each command wrote."""
    output = item.get("output")
    if output is None:
        return item.get("status")
    if not isinstance(output, list):
        return output
    return "\n".join(text for each in output for text in _written(each))


def _written(command: object) -> Iterator[str]:
    if not isinstance(command, Mapping):
        return
    for stream in (command.get("stdout"), command.get("stderr")):
        if isinstance(stream, str) and stream:
            yield stream
    outcome = command.get("outcome")
    if not isinstance(outcome, Mapping):
        return
    if outcome.get("type") == "timeout":
        yield "Error: timeout"
    elif outcome.get("exit_code"):
        yield f"Error: exit code {outcome['exit_code']}"
