"""An operator's changes to the chat template of a checkpoint."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TemplateOptions:
    """The options --chat-template and --default-chat-template-kwargs."""

    file: Path | None = None  # a template in place of the checkpoint's; None: the checkpoint's
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the template, for requests that do not set them."""

    def to_json(self) -> str:
        """Return a text that `from_json` reads, for a process of the same program."""
        file = None if self.file is None else str(self.file)
        return json.dumps({"file": file, "variables": self.variables})

    @classmethod
    def from_json(cls, text: str) -> "TemplateOptions":
        """Read what `to_json` wrote."""
        given = json.loads(text)
        return cls(None if given["file"] is None else Path(given["file"]), given["variables"])
