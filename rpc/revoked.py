"""The file of processes whose certificates count no more."""

import logging
from pathlib import Path

from baton.core.errors import ConfigError
from baton.rpc.identity import Identity

log = logging.getLogger(__name__)

REVOKED = "revoked"
"""The file's name in a process's folder. It may be absent."""


def read_revoked(path: Path) -> frozenset[str]:
    """Return the DNS names in the file, one a line; none if it is absent.

    Raises ConfigError if it cannot be read. A line that names no process is
    logged and passed over: the others still count.
    """
    try:
        lines = path.read_text().split()
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as err:
        raise ConfigError(f"cannot read the revoked processes in {path}: {err}") from err
    unknown = [line for line in lines if Identity.parse(line) is None]
    if unknown:
        log.error(
            "%s names no processes with %s; expected <name>.<role>.<cluster>.baton",
            path,
            ", ".join(unknown),
        )
    return frozenset(lines) - frozenset(unknown)
