"""The choice of rows that have drafts, by what steps cost and how many guesses are right."""

from functools import partial
from operator import attrgetter

from baton.engine.request.request import Request
from baton.engine.settings.choices import WINDOWS
from baton.engine.speculation.guess_record import Ahead, GuessRecord
from baton.engine.speculation.step_costs import StepCosts
from baton.engine.speculation.window_gain import PLAIN, Choice, Guessed, choose

# Steps between two choices, unless something new is known; and between two that are timed while no
# row has guesses.
_EVERY = 4
# Tokens a second, as a multiple of plain decoding's, from which drafts are verified, and from which
# they go on being verified: what the host does for them is not in the time of steps.
_BEGIN, _GO_ON = 1.05, 1.02
_LEAST = 0.05  # tokens beside its newest that a row gives in a window of two, for drafts


class DraftChoice:
    """Chooses the window of each step, and the rows that have drafts.

    All rows of a step have the same window, so it is chosen for all rows together, with the rows
    that have drafts: see `choose`. A row without drafts is looked at now and then; see
    `GuessRecord`.
    """

    def __init__(self, most: int, cuts: bool) -> None:
        """most: tokens of a window. cuts: see `choose`."""
        self._sizes = [size for size in WINDOWS[1:] if size <= most]
        self._cuts = cuts
        self._records: dict[int, GuessRecord] = {}  # by serial
        self._costs = StepCosts()
        self._window = PLAIN
        self._steps = 0
        self._stale = False  # something new is known since the last choice
        self._idle = False  # no row has guesses, and what plain steps cost is known

    def begin(self, rows: int, ahead: Ahead) -> list[Request]:
        """Begin another step, of at most `rows` rows that decode. Return the requests that have
        drafts from this step on.
        """
        self._steps += 1
        if not self._stale and (self._idle or self._steps % _EVERY):
            return []
        self._stale = False
        return self._choose(rows, ahead)

    def wants(self, request: Request) -> bool:
        """Return true if the next row of a request has drafts where there are guesses."""
        record = self._records.get(request.serial)
        return record is not None and record.drafting

    def guesses(self, request: Request, ahead: Ahead) -> int:
        """Return how many drafts the next row of a request may have."""
        record = self._records.get(request.serial)
        if record is None:
            record = self._records[request.serial] = GuessRecord(request, ahead)
            self._stale = True
        self.look(request, ahead)
        return self._window - 1 if record.drafting else 0

    def look(self, request: Request, ahead: Ahead) -> None:
        """Compare the new tokens of a request with guesses, if its rows have no drafts and it is
        time.
        """
        record = self._records.get(request.serial)
        if record is None or record.drafting or request.computed < record.next_look:
            return
        record.look(ahead)
        self._stale = True

    def plain_until(self, request: Request) -> int:
        """Return the tokens up to which the rows of a request have no drafts."""
        record = self._records.get(request.serial)
        if record is None or record.drafting:
            return request.computed
        return record.next_look

    def verified(self, request: Request, drafts: int, accepted: int) -> None:
        """Note the result of a row that was to have drafts."""
        record = self._records.get(request.serial)
        if record is not None:
            record.verified(drafts, accepted)
            self._idle = False

    @property
    def skips(self) -> bool:
        """True if what the last step took does not matter."""
        return self._idle and self._steps % _EVERY > 0

    def took(self, rows: int, window: int, seconds: float) -> None:
        """Note the seconds of a step without prompts. window: that was computed, or CUT."""
        self._costs.add(rows, window, seconds)

    def forget(self, request: Request) -> None:
        """Note that a request does not run."""
        if self._records.pop(request.serial, None) is not None:
            self._stale = True

    def _choose(self, rows: int, ahead: Ahead) -> list[Request]:
        records = [record for record in self._records.values() if _promising(record)]
        self._idle = not records and self._costs.knows_plain(rows)
        records.sort(key=attrgetter("right.rate"), reverse=True)
        guesses = [Guessed(record.right.rate, record.coverage) for record in records]
        choice = choose(guesses, rows, self._sizes, partial(self._costs.ratio, rows), self._cuts)
        if choice.gain < (_BEGIN if self._window == PLAIN else _GO_ON):
            choice = Choice(PLAIN, 0, 1.0)
        self._window = choice.window
        drafting = {record.request.serial for record in records[: choice.rows]}
        begun = []
        for serial, record in self._records.items():
            if record.drafting and serial not in drafting:
                record.keep_plain(ahead)
            elif serial in drafting and not record.drafting:
                record.drafting = True
                begun.append(record.request)
        return begun


def _promising(record: GuessRecord) -> bool:
    return record.coverage * record.right.rate >= _LEAST
