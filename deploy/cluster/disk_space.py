"""The room on the disk of Ray's logs, without which Ray starts no process."""

import os
from pathlib import Path

_LEAST_BYTES = 1 << 20


def full_disk(folder: Path, least_bytes: int = _LEAST_BYTES) -> str:
    """Say that the disk of this folder is full; empty where it has room, or is not there."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return ""
    free = found.f_bavail * found.f_frsize
    if free >= least_bytes:
        return ""
    return (
        f"the disk of {folder} is full ({free >> 10} KiB free), and Ray starts no process that "
        "cannot write its log there; free some of it"
    )
