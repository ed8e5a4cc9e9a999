"""The options of a request dump."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import ConfigError
from baton.core.options import Folder, Group, Whole, option


# fmt: off
@dataclass(frozen=True)
class DumpOptions:
    """The place and the contents of a request dump, set at start from the command line."""

    folder: Path | None = option(
        None, Group.RECORDS,
        "Folder in which the router records each request that ended, for `baton replay`: lengths, "
        "shared beginnings, times and numeric parameters, but no prompt.",
        Folder(), names=("--dump-requests",))
    prompts: bool = option(
        False, Group.RECORDS, "Record prompts and all parameters too.", names=("--dump-prompts",))
    # Of one start's file.
    max_bytes: int = option(
        256 << 20, Group.RECORDS, "Largest file of --dump-requests, in MiB; then it ends.",
        Whole(1), names=("--dump-requests-mb",), factor=1 << 20)
    # fmt: on

    def __post_init__(self) -> None:
        """Check that there is a place for prompts. Raises ConfigError."""
        if self.prompts and self.folder is None:
            raise ConfigError("--dump-prompts needs --dump-requests FOLDER: it says where to")
