"""One value of an option, and where it comes from."""

from dataclasses import dataclass
from pathlib import Path

Value = str | int | float | bool | None | list[str | int | float]
"""A value as a file has it, in the option's words and unit; None: left out."""


@dataclass(frozen=True)
class Setting:
    """One value of a file."""

    name: str  # as the file has it
    value: Value
    path: Path
    line: int

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"
