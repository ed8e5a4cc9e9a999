"""The control groups that bound this process's memory: containers, and systemd's MemoryMax=.

A group's limit holds for all groups in it, so each one between the process and the top of the
hierarchy counts. See cgroups(7); `memory.high` and `memory.max` are in Linux's cgroup-v2.rst,
`memory.limit_in_bytes` in cgroup-v1/memory.rst.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SELF = Path("/proc/self")


@dataclass(frozen=True)
class _Files:
    """The names of one version's files."""

    limits: tuple[str, ...]
    used: str
    droppable: str  # in memory.stat: pages of files that nobody has read again


_V2 = _Files(("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True)
class MemoryGroup:
    """A control group with a limit of memory, in bytes."""

    limit: int
    used: int  # without what the kernel drops first when the limit is reached

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


def memory_groups() -> list[MemoryGroup]:
    """Return the groups with a limit that this process is in, from the innermost outward."""
    found = []
    for folder, files in _folders():
        limits = [size for name in files.limits if (size := _size(folder / name)) is not None]
        used = _size(folder / files.used)
        if limits and used is not None:
            droppable = min(_stat(folder).get(files.droppable, 0), used)
            found.append(MemoryGroup(min(limits), used - droppable))
    return found


def _folders() -> Iterator[tuple[Path, _Files]]:
    """Yield the folder of each group that this process is in, and the names of its files."""
    mounts = dict(_mounts())
    for line in _lines(SELF / "cgroup"):
        _, controllers, group = line.split(":", 2)
        files = _V1 if "memory" in controllers.split(",") else None if controllers else _V2
        if files is None or files not in mounts:
            continue
        top, mounted = mounts[files]
        parts = PurePosixPath(group).parts
        # Elsewhere when the hierarchy was mounted for another container: its top alone is known.
        within = parts[len(top) :] if parts[: len(top)] == top and ".." not in parts else ()
        for depth in range(len(within), -1, -1):
            yield mounted.joinpath(*within[:depth]), files


def _mounts() -> Iterator[tuple[_Files, tuple[tuple[str, ...], Path]]]:
    """Yield which group each hierarchy that counts memory shows at its top, and where."""
    for line in _lines(SELF / "mountinfo"):
        of_mount, _, of_system = line.partition(" - ")
        _, _, _, top, mounted, *_ = of_mount.split()
        kind, _, options = of_system.split(maxsplit=2)
        place = PurePosixPath(top).parts, Path(mounted)
        if kind == "cgroup2":
            yield _V2, place
        elif kind == "cgroup" and "memory" in options.split(","):
            yield _V1, place


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def _size(path: Path) -> int | None:
    """Return the bytes that a file names; None where it names no limit or is not there."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0] != "max" else None


def _stat(folder: Path) -> Mapping[str, int]:
    pairs = (line.split() for line in _lines(folder / "memory.stat"))
    return {name: int(size) for name, size in pairs}
