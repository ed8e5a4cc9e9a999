"""The changes of request tables that the device has yet to learn."""

from array import array
from collections.abc import Iterable
from typing import NamedTuple


class History(NamedTuple):
    """The tokens that a request is admitted or adopted with."""

    tokens: bytes  # int32, prompt and output
    prompt: int  # tokens of the prompt
    counted: bool  # penalties count its tokens
    prompt_counted: bool  # those of the prompt too
    stop_ids: tuple[int, ...]  # what its minimum length rules out; empty without one


class TableEntries(NamedTuple):
    """Changes of the request tables. They reach the device with the step that names them."""

    places: "array[int]"  # of block tables: row * width + entry, each once
    pages: "array[int]"
    histories: tuple[tuple[int, History], ...] = ()  # by row, of requests new to it
    # Rows whose lengths grow by one although no step sampled their tokens: it could not be packed.
    lost: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places or self.histories or self.lost)

    def without(self, rows: Iterable[int]) -> "TableEntries":
        """Return these changes after a step that was to sample a token for each of `rows`, and was
        lost.
        """
        return self._replace(lost=(*self.lost, *rows))

    def then(self, later: "TableEntries") -> "TableEntries":
        """Return these changes and `later` ones as one."""
        if not self:
            return later
        pages = dict(zip(self.places, self.pages, strict=True))
        pages.update(zip(later.places, later.pages, strict=True))
        begun = dict(later.histories)
        histories = dict(self.histories) | begun
        lost = tuple(row for row in self.lost if row not in begun) + later.lost
        return TableEntries(
            array("q", pages.keys()), array("q", pages.values()), tuple(histories.items()), lost
        )


NO_ENTRIES = TableEntries(array("q"), array("q"))


class TableChanges:
    """The entries that differ from the device's, by row: pages appended, pages swapped for the
    prefix cache's, and whole rows of requests that were admitted or adopted.
    """

    def __init__(self, width: int) -> None:
        """width: entries of a row of the block tables."""
        self.width = width
        self._changed: dict[int, dict[int, int]] = {}
        self._begun: dict[int, History] = {}

    def __bool__(self) -> bool:
        return bool(self._changed)

    def begin(self, row: int, pages: Iterable[int], history: History) -> None:
        """Note that a request has taken `row`."""
        self._changed[row] = dict(enumerate(pages))
        self._begun[row] = history

    def note(self, row: int, first: int, pages: Iterable[int]) -> None:
        """Note that `pages` stand in `row` from entry `first` on."""
        changed = self._changed.get(row)
        if changed is None:
            changed = self._changed[row] = {}
        changed.update(enumerate(pages, first))

    def forget(self, row: int) -> None:
        """Drop the changes of a row whose request has left it."""
        self._changed.pop(row, None)
        self._begun.pop(row, None)

    @property
    def rows(self) -> Iterable[int]:
        """The rows that have changes."""
        return self._changed

    def take(self, rows: Iterable[int]) -> TableEntries:
        """Return the changes of `rows`, those of a step, and forget them.

        Another row's changes wait for its own next step: a step that fails ends all its requests,
        so no request goes on whose changes were lost.
        """
        places, pages = array("q"), array("q")
        histories: list[tuple[int, History]] = []
        for row in rows:
            changed = self._changed.pop(row, None)
            if changed is None:
                continue
            first = row * self.width
            places.extend(first + entry for entry in changed)
            pages.extend(changed.values())
            if row in self._begun:
                histories.append((row, self._begun.pop(row)))
        return TableEntries(places, pages, tuple(histories))
