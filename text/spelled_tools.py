"""Tools, calls and results as texts, for chat templates that do not write them.

Many templates know only texts and roles, and what they do not know they leave out without an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from baton.text.conversation import Message, PastCall
from baton.text.template_traits import TemplateTraits
from baton.text.tool_calls import CallStyle, ToolFormat


def can_spell(form: ToolFormat) -> bool:
    """Return whether calls of this form can be written here."""
    return not {CallStyle.JSON, CallStyle.DEEPSEEK}.isdisjoint(form.styles)


def with_spelled_tools(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    traits: TemplateTraits,
    form: ToolFormat,
) -> list[Message]:
    """Return the messages with all that the template would leave out in their texts.

    form: of the calls, one that can be spelled.
    """
    spelled = []
    for message in messages:
        if message.calls and not traits.calls:
            parts = (*message.parts, _written(message.calls, form))
            message = replace(message, parts=parts, calls=())
        elif message.role == "tool" and not traits.results:
            result = "\n".join(message.parts)
            message = Message("user", (f"<tool_response>\n{result}\n</tool_response>",))
        spelled.append(message)
    if not tools or traits.tools:
        return spelled
    offer = _offer(tools, form)
    if spelled and spelled[0].role == "system":
        first = spelled[0]
        return [replace(first, parts=(*first.parts, offer)), *spelled[1:]]
    return [Message("system", (offer,)), *spelled]


def _written(calls: Sequence[PastCall], form: ToolFormat) -> str:
    """Return the text with which the model would have made these calls."""
    if CallStyle.DEEPSEEK in form.styles:
        between = "\n" if form.fenced else ""
        return form.begin + between.join(_marked(call, form) for call in calls) + form.end
    bodies = [{"name": call.name, "arguments": call.arguments.whole()} for call in calls]
    if form.together:
        return f"{form.begin}{_json(bodies)}{form.end}"
    return "\n".join(f"{form.begin}\n{_json(body)}\n{form.end}".rstrip() for body in bodies)


def _marked(call: PastCall, form: ToolFormat) -> str:
    """Return one call as DeepSeek's models write it."""
    begin, middle, end = form.inner
    arguments = _json(call.arguments.whole())
    if form.fenced:
        return f"{begin}function{middle}{call.name}\n```json\n{arguments}\n```{end}"
    return f"{begin}{call.name}{middle}{arguments}{end}"


def _offer(tools: Sequence[Mapping[str, Any]], form: ToolFormat) -> str:
    described = "\n".join(_json(tool.get("function") or tool) for tool in tools)
    example = _written([PastCall("...")], form)
    return (
        "You have tools. Each line describes one: its name, what it does, and its arguments as a "
        f"JSON schema.\n{described}\n"
        f"To use a tool, answer with its name and its arguments in this form:\n{example}\n"
        "Its result is in the next message. Use a tool only if the answer needs it."
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
