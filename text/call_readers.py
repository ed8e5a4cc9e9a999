"""The tests for a call that begins at a place of an answer, and the readers of its forms."""

from typing import Protocol

from baton.text.call_stream import CallStream
from baton.text.python_calls import PythonCalls
from baton.text.tag_calls import TagCalls
from baton.text.tool_calls import FUNCTION, CallMore, CallStyle, Parameters, ToolCall, ToolFormat

_MOST_NAME = 256


class CallReader(Protocol):
    """A reader of the calls of one place. What it returns depends on the text alone, not on the
    pieces that it comes in."""

    rest: str
    """The text behind the calls, or, where they are wrong, the text that could not be read."""

    @property
    def over(self) -> bool:
        """Return whether the calls have ended."""
        ...

    @property
    def wrong(self) -> bool:
        """Return whether what follows is no call."""
        ...

    def push(self, text: str) -> list[ToolCall | CallMore]:
        """Return what the text adds."""
        ...

    def finish(self) -> list[ToolCall | CallMore]:
        """Return what was held back, at the end of the answer. `rest` is then no call's."""
        ...


def call_begins(tools: ToolFormat, behind: str) -> bool | None:
    """Return whether a call begins with the first mark that `behind` follows; None: it cannot be
    told yet. A mark that a text only names is followed by other text."""
    bare = behind.lstrip()
    if "\n" in behind[: len(behind) - len(bare)]:
        return True
    if not bare:
        return None
    beginnings = ["{", "[", *tools.inner]
    if CallStyle.TAGS in tools.styles:
        beginnings.append(FUNCTION)
    if any(bare.startswith(beginning) for beginning in beginnings):
        return True
    return None if any(beginning.startswith(bare) for beginning in beginnings) else False


def bare_call_begins(tools: ToolFormat, text: str, parameters: Parameters) -> bool | None:
    """Return whether a call of an offered tool begins here without a mark; None: it cannot be told
    yet."""
    if CallStyle.TAGS not in tools.styles:
        return text.startswith("{") if text else None
    if not text.startswith(FUNCTION):
        return None if FUNCTION.startswith(text) else False
    name, end, _ = text[len(FUNCTION) :].partition(">")
    if end:
        return name.strip() in parameters
    return False if "\n" in name or len(name) > _MOST_NAME else None


def call_reader(
    tools: ToolFormat, behind: str, parameters: Parameters, *, bare: bool = False
) -> CallReader | None:
    """Return the reader of a call that begins with `behind`; None: it cannot be told yet.

    bare: without its mark, where a call must be one of an offered tool.
    """
    text = behind.lstrip()
    style = tools.styles[0]
    if len(tools.styles) > 1:
        if not text or (text != FUNCTION and FUNCTION.startswith(text)):
            return None
        inside = text.removeprefix("[").lstrip()
        if not inside:
            return None
        if text.startswith(FUNCTION) and CallStyle.TAGS in tools.styles:
            style = CallStyle.TAGS
        elif inside.startswith("{") or CallStyle.PYTHON not in tools.styles:
            style = CallStyle.JSON
    match style:
        case CallStyle.TAGS:
            return TagCalls(tools, parameters)
        case CallStyle.PYTHON:
            return PythonCalls(tools)
        case _:
            return CallStream(tools, style, parameters.keys() if bare else None)
