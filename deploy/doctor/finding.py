"""Findings of `baton doctor`: their levels, and what each must say."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The importance of a finding to a cluster on this machine."""

    OK = "ok"
    NOTE = "note"  # works; a reader may want to know
    WARNING = "warning"  # works, but slower or with less room than it could
    PROBLEM = "problem"  # Baton, or the named part of it, does not work


@dataclass(frozen=True)
class Finding:
    """The result of one check; for a warning or a problem also what it means and what to do."""

    check: str
    level: Level
    found: str
    meaning: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level in (Level.WARNING, Level.PROBLEM):
            assert self.meaning and self.remedy, f"{self.check}: a {self.level} needs both"


def ok(check: str, found: str) -> Finding:
    return Finding(check, Level.OK, found)
