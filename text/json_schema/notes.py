"""Keywords of a client's schema that its rewritten form does not enforce."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.text.errors import GrammarError, SchemaError
from baton.text.json_schema.keywords import Path, pointer

_MOST = 256  # notes; further ones say nothing new


@dataclass(frozen=True)
class Unenforced:
    """A keyword that the answer may break."""

    keyword: str
    pointer: str  # of the keyword's value, from the schema's root


class Notes:
    """The keywords that were left out of one schema so far."""

    def __init__(self) -> None:
        self._found: dict[Unenforced, None] = {}

    def leave_out(self, keyword: str, path: Path) -> None:
        """Note a keyword of the schema at `path`."""
        if len(self._found) < _MOST:
            self._found[Unenforced(keyword, pointer((path, keyword)))] = None

    @property
    def found(self) -> tuple[Unenforced, ...]:
        return tuple(self._found)


def checked(path: Path, keyword: str, check: Callable[[], None]) -> None:
    """Check a limit of grammars. Raises SchemaError that names the keyword's place."""
    try:
        check()
    except GrammarError as error:
        raise SchemaError(f"is too large at {pointer((path, keyword))}: {error}") from error


def wrong(path: Path, keyword: str, expected: str) -> SchemaError:
    """Return the error for a keyword's value that is of no use."""
    return SchemaError(f"has no {expected} at {pointer((path, keyword))}")
