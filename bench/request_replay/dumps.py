"""Reading request dumps: the files of one or several routers, as one list of requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton.core.errors import ConfigError
from baton.router.dump.request_record import (
    SUFFIX,
    DumpHeader,
    RequestRecord,
    parse_header,
)


@dataclass(frozen=True)
class Dumped:
    """One request of a dump. `file` is the number of its file: blocks of two files never match."""

    at_s: float  # its arrival, after the first of all
    file: int
    header: DumpHeader
    record: RequestRecord


def read_dumps(path: Path) -> list[Dumped]:
    """Read a dump's file, or all in a folder; return the requests by arrival.

    Raises ConfigError that names a file and line that cannot be read, or where there is none.
    """
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    found = [dumped for number, file in enumerate(files) for dumped in _read(file, number)]
    if not found:
        raise ConfigError(
            f"{path} has no requests; expected files *{SUFFIX}, as `baton serve --dump-requests` "
            "writes them"
        )
    found.sort(key=_absolute)
    first = _absolute(found[0])
    return [Dumped(_absolute(d) - first, d.file, d.header, d.record) for d in found]


def _absolute(dumped: Dumped) -> float:
    return dumped.header.started + dumped.record.arrived_s


def _read(file: Path, number: int) -> Iterator[Dumped]:
    try:
        first, *lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:  # an empty file has no first line
        raise ConfigError(f"cannot read the request dump {file}: {error}") from error
    try:
        header = parse_header(first)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    for at, line in enumerate(lines, start=2):
        try:
            yield Dumped(0.0, number, header, RequestRecord.parse(line))
        except ConfigError as error:
            if at - 1 == len(lines):  # a router that was killed leaves its last line unfinished
                return
            raise ConfigError(f"{file}, line {at}: {error}") from error
