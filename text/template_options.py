"""An operator's changes to the chat template of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.text.parser_names import AUTO


@dataclass(frozen=True)
class TemplateOptions:
    """The options --chat-template, --default-chat-template-kwargs, --tool-call-parser and
    --reasoning-parser."""

    file: Path | None = None  # a template in place of the checkpoint's; None: the checkpoint's
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template, for requests that do not set them."""
    tool_parser: str = AUTO  # the form of calls in answers, by a name of `parser_names`
    reasoning_parser: str = AUTO

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
