"""An operator's changes to the chat template of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.core.errors import ConfigError
from baton.core.options import File, Group, ReadText, option
from baton.text.parser_names import AUTO, NONE, REASONING_PARSERS, TOOL_PARSERS


def _object(text: str) -> dict[str, Any]:
    """Read a JSON object. Raises ConfigError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as err:
        raise ConfigError(f"{err}; expected a JSON object") from err
    if not isinstance(found, dict):
        raise ConfigError(f"it is {text[:80]}; expected a JSON object")
    return found


def _parser(part: str, names: Mapping[str, object]) -> str:
    """Return the help of the option that names the form of a part of answers."""
    return (
        f"Form of {part} in answers, by the name of vLLM's or SGLang's parser: {', '.join(names)}; "
        f"auto: by the marks in the chat template; none: {part} stay text."
    )


# fmt: off
@dataclass(frozen=True)
class TemplateOptions:
    """The template of chats, its variables, and the forms of what is parsed of answers."""

    file: Path | None = option(
        None, Group.ANSWERS, "File with a chat template in place of the model's.",
        File(), names=("--chat-template",))
    variables: Mapping[str, Any] = option(
        {}, Group.ANSWERS,
        "Variables of the chat template, such as {\"enable_thinking\": false}, for requests that "
        "do not set them.", ReadText(_object),
        names=("--default-chat-template-kwargs",), metavar="JSON")
    tool_parser: str = option(
        AUTO, Group.ANSWERS, _parser("calls of tools", TOOL_PARSERS),
        names=("--tool-call-parser",), metavar="NAME")
    reasoning_parser: str = option(
        AUTO, Group.ANSWERS, _parser("reasoning", REASONING_PARSERS), metavar="NAME")
    # fmt: on

    def __post_init__(self) -> None:
        """Check the names of parsers. Raises ConfigError."""
        for name, given, known in (
            ("--tool-call-parser", self.tool_parser, TOOL_PARSERS),
            ("--reasoning-parser", self.reasoning_parser, REASONING_PARSERS),
        ):
            if given not in (AUTO, NONE, *known):
                raise ConfigError(
                    f"{name} is {given[:80]!r}, a form that Baton does not read; expected {AUTO}, "
                    f"{NONE}, or the form of one of {', '.join(known)}"
                )

    def to_json(self) -> str:
        """Return a text that `from_json` reads, for a process of the same program."""
        file = None if self.file is None else str(self.file)
        parsers = [self.tool_parser, self.reasoning_parser]
        return json.dumps({"file": file, "variables": self.variables, "parsers": parsers})

    @classmethod
    def from_json(cls, text: str) -> "TemplateOptions":
        """Read what `to_json` wrote."""
        given = json.loads(text)
        file = None if given["file"] is None else Path(given["file"])
        return cls(file, given["variables"], *given["parsers"])
