"""A debug check that every slot and page holds what the batch that reads it believes.

Each slot and page that a step writes is remembered with the hash of the token prefix that it then
stands for, its cache salt included; each step's reads are compared. Steps are taken in the order in
which the stream ran them, when their results are processed, so what is compared is what the forward
found.
"""

from array import array
from collections.abc import Collection, Sequence

from baton.core.errors import InvariantError
from baton.engine.layout.token_key import TOKEN_BYTES, token_key
from baton.engine.request.request import Request, Reservation
from baton.engine.settings.config import EngineConfig, ModelConfig
from baton.engine.step.batch import Batch, Row

Mark = tuple[int, int]  # tokens, and the hash of that prefix and its cache salt


class Canary:
    """The token prefix that each slot and page stands for. Reads are checked before writes are
    noted. Pages are found through a copy of the device's block tables, which the entries of each
    step change as they change those.
    """

    def __init__(self, page_size: int, stateful: bool, table_width: int) -> None:
        self._page_size = page_size
        self._stateful = stateful
        self._width = table_width
        self._tables: dict[int, int] = {}  # by row * width + entry
        self._slots: dict[int, Mark] = {}
        self._pages: dict[int, Mark] = {}

    def begin(self, batch: Batch) -> None:
        """Note the table entries that a step brought to the device, before its rows are checked."""
        entries = batch.entries
        self._tables.update(zip(entries.places, entries.pages, strict=True))

    def step(self, request: Request, row: Row) -> None:
        """Check the reads of a row and note its writes. Raises InvariantError for a wrong read."""
        marks = self._marks(request.token_ids(0, row.end), request.spec.cache_salt)
        where = f"request {request.request_id} at {row.start} tokens"
        if row.start:
            if self._stateful:
                self._compare("slot", self._slots, row.read_slot, marks[row.start], where)
            for index, end in self._page_ends(0, row.start):
                self._compare("page", self._pages, self._page(row, index), marks[end], where)
        self._slots[row.write_slot] = marks[row.end]
        for tracked in row.tracked:
            self._slots[tracked.slot] = marks[tracked.depth]
        for index, end in self._page_ends(row.start, row.end):
            self._pages[self._page(row, index)] = marks[end]

    def forget(self, row: Row) -> None:
        """Forget what a row wrote whose request is gone."""
        self._slots.pop(row.write_slot, None)
        for index, _ in self._page_ends(row.start, row.end):
            self._pages.pop(self._page(row, index), None)

    def adopted(self, request: Request) -> None:
        """Note that a peer has written the state of the request's computed tokens."""
        where = f"request {request.request_id}, adopted,"
        tokens = request.token_ids(0, request.lengths.computed)
        marks = self._marks(tokens, request.spec.cache_salt)
        self._received(marks, request.slot, request.pages, request.owned, where)

    def kept(self, tokens: Sequence[int], reservation: Reservation) -> None:
        """Note that a peer has written the state of `tokens` for the prefix cache."""
        marks = self._marks(tokens, reservation.cache_salt)
        pages, owned = reservation.state.pages, reservation.owned
        self._received(marks, reservation.state.slot, pages, owned, "a kept prefix")

    def lent(self, salt: bytes, key: bytes, slot: int, pages: Sequence[int]) -> None:
        """Check what somebody is about to read of the prefix `key`, all of it whole pages. slot: 0
        where it has no state. Raises InvariantError for a wrong read."""
        marks = self._marks(array("i", key), salt)
        if slot:
            self._compare("slot", self._slots, slot, marks[-1], "a loan")
        for index, end in self._page_ends(0, len(marks) - 1):
            self._compare("page", self._pages, pages[index], marks[end], "a loan")

    def _received(
        self,
        marks: Sequence[Mark],
        slot: int,
        pages: Sequence[int],
        owned: Collection[int],
        where: str,
    ) -> None:
        """Note that a peer has written the state of `marks` into the slot and the `owned` pages.
        The other pages must hold it already. Raises InvariantError where they do not.
        """
        self._slots[slot] = marks[-1]
        for index, end in self._page_ends(0, len(marks) - 1):
            page = pages[index]
            if page in owned:
                self._pages[page] = marks[end]
            else:
                self._compare("page", self._pages, page, marks[end], where)

    def _page(self, row: Row, index: int) -> int:
        """Return the page that the device finds in an entry of the row's block table."""
        return self._tables.get(row.table_row * self._width + index, 0)

    def _page_ends(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return (index, tokens up to its end) of the pages that hold tokens [start, end)."""
        size = self._page_size
        return [(i, min((i + 1) * size, end)) for i in range(start // size, -(-end // size))]

    @staticmethod
    def _marks(tokens: Sequence[int], salt: bytes) -> list[Mark]:
        """Return a mark of every prefix: marks[n] stands for the first n tokens."""
        key, value = token_key(tokens), hash(salt)
        marks: list[Mark] = [(0, 0)]
        for count in range(1, len(tokens) + 1):
            value = hash((value, key[(count - 1) * TOKEN_BYTES : count * TOKEN_BYTES]))
            marks.append((count, value))
        return marks

    @staticmethod
    def _compare(what: str, kept: dict[int, Mark], ident: int, expected: Mark, where: str) -> None:
        found = kept.get(ident)
        if found != expected:
            holds = "nothing that is known"
            if found is not None:
                holds = f"{found[0]} tokens" + " of another" * (found[0] == expected[0])
            raise InvariantError(
                f"{where} read {what} {ident}, which should hold its first {expected[0]} tokens, "
                f"but holds {holds}"
            )


def canary_for(config: EngineConfig, model: ModelConfig, table_width: int) -> Canary | None:
    """Return the canary of an engine; None: its options ask for none."""
    if not config.canary:
        return None
    return Canary(config.page_size, bool(model.recurrent), table_width)
