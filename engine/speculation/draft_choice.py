"""The choice of rows that have drafts, by what steps cost and how many guesses are right."""

from collections.abc import Callable

from baton.engine.choices import WINDOWS
from baton.engine.schedule.request import Request
from baton.engine.speculation.acceptance import Acceptance, guessed_right
from baton.engine.speculation.step_costs import StepCosts

_EVERY = 4  # steps between two choices of the window
_WORTH = 1.05  # tokens a second, as a multiple of plain decoding's, from which drafts are verified
_LEAST_RATE = 0.2  # of right guesses, from which a row has drafts
_FIRST_LOOK, _LOOK, _LONGEST_LOOK = 4, 16, 64  # tokens between two looks at a row without drafts
_SEARCHED = 2048  # tokens, in a look


class _Row:
    """The record of one request's guesses."""

    def __init__(self, computed: int) -> None:
        self.acceptance = Acceptance()
        self.gap = _LOOK
        self.next_look = computed + _FIRST_LOOK  # tokens that are computed then


class DraftChoice:
    """Chooses the window of each step, and the rows that have drafts.

    All rows of a step have the same window, so it is chosen for all rows together: the one with the
    most tokens a second. A row without drafts is looked at now and then: how many of its latest
    tokens would n-grams have guessed?
    """

    def __init__(self, most: int) -> None:
        """most: tokens of a window."""
        self._sizes = [size for size in WINDOWS[1:] if size <= most]
        self._rows: dict[int, _Row] = {}  # by serial
        self._costs = StepCosts()
        self._window = 1
        self._steps = 0
        self._decoding = 1  # rows, at most

    def begin(self, rows: int) -> None:
        """Begin another step, of at most `rows` rows that decode."""
        self._steps += 1
        self._decoding = rows
        if self._steps % _EVERY == 0:
            self._choose()

    def wants(self, request: Request) -> bool:
        """Return true if the next row of a request has drafts where there are guesses, as far as
        is known.
        """
        row = self._rows.get(request.serial)
        return row is None or (self._window > 1 and row.acceptance.rate >= _LEAST_RATE)

    def guesses(self, request: Request, repeats: Callable[[Request], bool]) -> int:
        """Return how many drafts the next row of a request may have.

        repeats: returns true if its newest tokens are in a text beside its own: then half of what
        follows there is taken to be right, until it has been verified.
        """
        row = self._rows.get(request.serial)
        if row is None:
            row = self._rows[request.serial] = _Row(request.computed)
            if repeats(request):
                self._look(request, row, repeats)
        promising = row.acceptance.rate >= _LEAST_RATE
        if request.computed >= row.next_look and not (promising and self._window > 1):
            promising = self._look(request, row, repeats)
        if promising and self._window > 1:
            row.gap, row.next_look = _LOOK, request.computed + _LOOK
            return self._window - 1
        return 0

    def plain_until(self, request: Request) -> int:
        """Return the tokens up to which the rows of a request have no drafts."""
        row = self._rows.get(request.serial)
        return request.computed if row is None else row.next_look

    def verified(self, request: Request, drafts: int, accepted: int) -> None:
        """Note the result of a row that was to have drafts: those behind a wrong one were not
        tried; where nothing was guessed, nothing was right.
        """
        row = self._rows.get(request.serial)
        if row is not None:
            row.acceptance.add(accepted, accepted + (accepted < drafts or not drafts))

    def took(self, rows: int, window: int, seconds: float) -> None:
        """Note the seconds of a step without prompts."""
        self._costs.add(rows, window, seconds)

    def forget(self, request: Request) -> None:
        """Note that a request does not run."""
        self._rows.pop(request.serial, None)

    def _look(self, request: Request, row: _Row, repeats: Callable[[Request], bool]) -> bool:
        """Return true if many of the latest tokens would have been guessed."""
        if repeats(request):
            right = _LOOK // 2
        else:
            right = guessed_right(request.known_ids, _LOOK, _SEARCHED)
        row.acceptance.add(right, _LOOK)
        promising = row.acceptance.rate >= _LEAST_RATE
        row.gap = _LOOK if promising else min(2 * row.gap, _LONGEST_LOOK)
        row.next_look = request.computed + row.gap
        if promising:
            self._choose()
        return promising

    def _choose(self) -> None:
        rows = self._decoding
        rates = [row.acceptance.rate for row in self._rows.values()]
        rates = [rate for rate in rates if rate >= _LEAST_RATE]
        gains = {1: _WORTH}
        if rates:
            plain = max(rows, len(rates)) - len(rates)
            for size in self._sizes:
                tokens = plain + sum(_expected(rate, size) for rate in rates)
                gains[size] = tokens / (plain + len(rates)) / self._costs.ratio(rows, size)
        self._window = max(gains, key=lambda size: gains[size])


def _expected(rate: float, size: int) -> float:
    """Return the tokens that a row of `size` tokens gives on average."""
    return sum(rate**place for place in range(size))
