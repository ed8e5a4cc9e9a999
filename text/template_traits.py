"""The forms that a chat template accepts, found out once by rendering small conversations.

Templates of checkpoints differ in the forms they can read. Most print the arguments of calls as
objects and some join them as text; some write calls only where the content is null; some fail on a
system message behind the first. minja probes templates in the same way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

MessageJson = dict[str, Any]
Attempt = Callable[[Sequence[Mapping[str, Any]]], str | None]
"""A rendering of messages. It returns None if the template fails."""


class EmptyContent(Enum):
    """The content of a turn that has calls and no text."""

    TEXT = auto()  # ""
    NULL = auto()
    ABSENT = auto()


@dataclass(frozen=True)
class TemplateTraits:
    """The forms of messages that one template reads. The defaults are those of most."""

    argument_objects: bool = True  # arguments of calls are objects, else JSON text
    argument_texts: bool = False  # arguments that are no JSON object can be given as text
    empty_content: EmptyContent = EmptyContent.TEXT
    only_lists: bool = False  # a content must be a list of parts
    list_roles: frozenset[str] = frozenset()  # whose content may be one
    leading_system: bool = True  # a system message may come first
    later_system: bool = True  # and at any other place
    user_runs: bool = True  # two messages of the user may follow each other
    tools: bool = True  # offered tools are written
    calls: bool = True  # and earlier calls of them
    results: bool = True  # and messages of the role `tool`


PROBED_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probed_tool",
        "description": "Probed.",
        "parameters": {
            "type": "object",
            "properties": {"probed_key": {"type": "string", "description": "Probed."}},
            "required": ["probed_key"],
        },
    },
}
"""The tool that probes call: templates may show earlier calls only beside tools."""
_OBJECT = {"said_key": "said value"}
_TEXT = '{"said_key": "said value"}'
_ONE, _TWO = "probed one", "probed two"
_RAW_PARTS = ("'text'", '"text"')


def probe(attempt: Attempt) -> TemplateTraits:
    """Return the traits of the template that `attempt` renders, beside PROBED_TOOL."""
    only_lists = not _shows(attempt([_message("user", _ONE)]), _ONE)
    only_lists = only_lists and _shows_lists(attempt([_message("user", _parts(_ONE))]))

    def write(*messages: MessageJson) -> str | None:
        return attempt([_as_list(each) for each in messages] if only_lists else messages)

    form = _form_of_calls(write)
    objects, empty = form or (True, EmptyContent.TEXT)
    calls = _call_turn(_OBJECT if objects else _TEXT, empty)
    hi, system = _message("user", "hi"), _message("system", _ONE)
    late = _message("system", _TWO)
    around: dict[str, tuple[list[MessageJson], list[MessageJson]]] = {
        "system": ([], [hi]),
        "user": ([], []),
        "assistant": ([hi], [hi]),
        "tool": (calls[:-1], []),
    }
    return TemplateTraits(
        argument_objects=objects,
        argument_texts=_shows(write(*_call_turn(_TEXT, empty)), _TEXT),
        empty_content=empty,
        only_lists=only_lists,
        list_roles=frozenset(
            role for role, each in around.items() if _takes_lists(write, role, each)
        ),
        leading_system=_shows(write(system, hi), _ONE),
        later_system=_shows(write(system, hi, _message("assistant", "yes"), late, hi), _ONE, _TWO),
        user_runs=_shows(write(_message("user", _ONE), _message("user", _TWO)), _ONE, _TWO),
        tools=_shows(write(hi), PROBED_TOOL["function"]["name"]),
        calls=form is not None,
        results=_shows(write(*calls[:-1], _message("tool", _ONE)), _ONE),
    )


def _takes_lists(
    write: Callable[..., str | None],
    role: str,
    around: tuple[Sequence[MessageJson], Sequence[MessageJson]],
) -> bool:
    """Return whether a list of one part is written as its text is, and all parts of a list are."""
    before, after = around
    text, one, two = (
        write(*before, _message(role, content), *after)
        for content in (_ONE, _parts(_ONE), _parts(_ONE, _TWO))
    )
    return one is not None and one == text and _shows(two, _ONE, _TWO)


def with_empty_content(message: MessageJson, content: EmptyContent) -> MessageJson:
    """Return a message that has this kind of empty content."""
    if content is EmptyContent.ABSENT:
        return {name: value for name, value in message.items() if name != "content"}
    return message | {"content": "" if content is EmptyContent.TEXT else None}


def _form_of_calls(write: Callable[..., str | None]) -> tuple[bool, EmptyContent] | None:
    """Return whether arguments are objects, and the empty content beside which calls are shown;
    None if they never are."""
    for empty in EmptyContent:
        written = write(*_call_turn(_OBJECT, empty))
        # Templates that join texts by `~` write an object as Python does.
        if _shows(written, "said_key", "said value") and "{'said_key'" not in (written or ""):
            return True, empty
        if _shows(write(*_call_turn(_TEXT, empty)), _TEXT):
            return False, empty
    return None


def _call_turn(arguments: object, empty: EmptyContent) -> list[MessageJson]:
    call = {
        "id": "probed001",  # nine letters or digits: Mistral's templates refuse others
        "type": "function",
        "function": {"name": "probed_tool", "arguments": arguments},
    }
    turn = with_empty_content(_message("assistant", "") | {"tool_calls": [call]}, empty)
    return [_message("user", "hi"), turn, _message("tool", "done")]


def _message(role: str, content: object) -> MessageJson:
    id_of_call = {"tool_call_id": "probed001", "name": "probed_tool"} if role == "tool" else {}
    return {"role": role, "content": content, **id_of_call}


def _parts(*texts: str) -> list[MessageJson]:
    return [{"type": "text", "text": text} for text in texts]


def _as_list(message: MessageJson) -> MessageJson:
    content = message.get("content")
    return message | {"content": _parts(content)} if isinstance(content, str) else message


def _shows_lists(written: str | None) -> bool:
    """Return whether the text of a part is written, and not the part as Python or JSON do."""
    return _shows(written, _ONE) and not any(mark in (written or "") for mark in _RAW_PARTS)


def _shows(written: str | None, *texts: str) -> bool:
    return written is not None and all(text in written for text in texts)
