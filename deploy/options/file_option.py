"""The option that names a file with values of the others."""

from dataclasses import dataclass
from pathlib import Path

from baton.core.options import File, Group, option


# fmt: off
@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """The place of the values that the command line leaves out."""

    config_file: Path | None = option(
        None, Group.COMMAND,
        "File (YAML) with values of these options, as `decode: 2`. The command line beats the "
        "file; the file beats the environment and the defaults.", File(), names=("--file", "-f"))
# fmt: on
