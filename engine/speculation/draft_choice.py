"""The choice of rows that have drafts, by what steps cost and how many guesses are right."""

from typing import NamedTuple

from baton.core.drafts import DraftSource
from baton.engine.request.request import Request
from baton.engine.settings.choices import WINDOWS
from baton.engine.speculation.acceptance import DepthShares
from baton.engine.speculation.guess_record import Ahead, GuessRecord
from baton.engine.speculation.loss_limit import LossLimit
from baton.engine.speculation.step_costs import StepCosts
from baton.engine.speculation.window_gain import (
    PLAIN,
    Choice,
    Drafted,
    DraftGain,
    Guessed,
    choose,
)

# Steps between two choices, unless something new is known; and between two that are timed while no
# row has guesses.
_EVERY = 4
# Tokens a second, as a multiple of plain decoding's, from which drafts are verified, and from which
# they go on being verified: what the host does for them is not in the time of steps.
_BEGIN, _GO_ON = 1.05, 1.02
_LEAST = 0.05  # tokens beside its newest that a row gives in a window of two, for drafts
# Of the model's own layer: the part of its drafts that is taken to be right without a trial, how
# many trials that counts as, how many trials of all requests count, and the steps without any after
# which they are forgotten.
_RIGHT, _WEIGHT, _MEMORY, _OLD = 0.6, 2.0, 240.0, 128


class _Candidate(NamedTuple):
    """A row that may have drafts. by_layer: of the model's own layer."""

    record: GuessRecord
    expected: DraftGain
    by_layer: bool


class DraftChoice:
    """Chooses the window of each step, the rows that have drafts, and who guesses them.

    All rows of a step have the same window, so it is chosen for all rows together, with the rows
    that have drafts: see `choose`. A row without drafts is looked at now and then; see
    `GuessRecord`. Drafts of the model's own layer are known by their results alone, so they are
    tried now and then, as far as `LossLimit` goes.
    """

    def __init__(self, most: int, cuts: bool, depths: int = 0) -> None:
        """most: tokens of a window. cuts: see `choose`. depths: drafts of a row that the model's
        own layer may guess."""
        self._sizes = [size for size in WINDOWS[1:] if size <= most]
        self._cuts = cuts
        self._records: dict[int, GuessRecord] = {}  # by serial
        self._costs = StepCosts()
        self._limit = LossLimit()
        self._depths = depths
        self._layer = DepthShares(depths, _WEIGHT, _MEMORY)  # of all requests
        self._layer_tried = 0  # the last step whose drafts of the layer were verified
        self._window = PLAIN
        self._steps = 0
        self._stale = False  # something new is known since the last choice
        self._idle = False  # no row has guesses, and what plain steps cost is known

    def begin(self, rows: int, ahead: Ahead) -> list[Request]:
        """Begin another step, of at most `rows` rows that decode. Return the requests that have
        drafts from this step on.
        """
        self._steps += 1
        self._limit.step()
        if self._depths and self._limit.full and self._steps - self._layer_tried > _OLD:
            self._forget_layer()
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
            whole = request.rules is None or not request.rules.follows
            depths = self._depths if whole else 0
            record = self._records[request.serial] = GuessRecord(request, ahead, depths)
            self._stale = True
        self.look(request, ahead)
        return self._window - 1 if record.drafting else 0

    def by_layer(self, request: Request) -> bool:
        """Return true if the model's own layer guesses for a request whose next row has drafts."""
        record = self._records.get(request.serial)
        return record is not None and record.by_layer

    def look(self, request: Request, ahead: Ahead) -> None:
        """Compare the new tokens of a request with guesses, if its rows have none of them and it is
        time.
        """
        record = self._records.get(request.serial)
        if record is None or request.lengths.computed < record.next_look:
            return
        if record.drafting and not record.by_layer:
            return
        record.look(ahead)
        self._stale = True

    def plain_until(self, request: Request) -> int:
        """Return the tokens up to which the rows of a request have no drafts."""
        record = self._records.get(request.serial)
        if record is None or record.drafting:
            return request.lengths.computed
        return record.next_look

    def verified(self, request: Request, source: DraftSource, drafts: int, accepted: int) -> None:
        """Note the result of a row that was to have drafts. source: of the first."""
        record = self._records.get(request.serial)
        by_layer = self._depths > 0 and source is DraftSource.MTP
        if by_layer:
            self._layer.add(drafts, accepted)
            self._layer_tried = self._steps
        if record is None:
            return
        self._idle = False
        if not by_layer:
            record.verified(drafts, accepted)
        elif record.layer is not None:
            record.layer.add(drafts, accepted)

    @property
    def skips(self) -> bool:
        """True if what the last step took does not matter."""
        return self._idle and self._steps % _EVERY > 0

    def took(
        self, rows: int, window: int, seconds: float, layered: bool = False, accepted: int = 0
    ) -> None:
        """Note the seconds of a step without prompts. window: that was computed, or CUT. layered:
        the model's own layer guessed drafts. accepted: drafts of all rows that were right."""
        self._costs.add(rows, window, seconds, layered)
        if window == PLAIN:
            return
        cost = self._costs.spent(rows, window, seconds, layered)
        if cost is not None:
            self._limit.add(1.0 + accepted / rows, cost)
            self._stale = self._stale or self._limit.worn

    def forget(self, request: Request) -> None:
        """Note that a request does not run."""
        if self._records.pop(request.serial, None) is not None:
            self._stale = True

    def _choose(self, rows: int, ahead: Ahead) -> list[Request]:
        looked = [_looked_up(record) for record in self._records.values() if _promising(record)]
        choice, chosen = self._best(looked, rows, layered=False)
        if self._depths:
            other, others = self._best(self._with_layer(), rows, layered=True)
            if other.gain > choice.gain:
                choice, chosen = other, others
        least = _BEGIN if self._window == PLAIN else _GO_ON
        if choice.gain < least or not self._limit.open:
            choice, chosen = Choice(PLAIN, 0, 1.0), []
        plain = choice.window == PLAIN
        self._idle = not looked and plain and self._costs.knows_plain(rows)
        self._window = choice.window
        drafting = {each.record.request.serial: each.by_layer for each in chosen}
        begun = []
        for serial, record in self._records.items():
            if record.drafting and serial not in drafting:
                record.keep_plain(ahead)
            elif serial in drafting and not record.drafting:
                record.drafting = True
                begun.append(record.request)
            record.by_layer = drafting.get(serial, False)
        return begun

    def _best(
        self, candidates: list[_Candidate], rows: int, layered: bool
    ) -> tuple[Choice, list[_Candidate]]:
        """Return the best choice, and the candidates that have drafts in it."""
        most = self._sizes[-1]
        candidates.sort(
            key=lambda each: each.expected.tokens(most) / each.expected.found, reverse=True
        )
        guesses = [each.expected for each in candidates]

        def cost(window: int) -> float:
            return self._costs.ratio(rows, window, layered)

        choice = choose(guesses, rows, self._sizes, cost, self._cuts and not layered)
        return choice, candidates[: choice.rows]

    def _with_layer(self) -> list[_Candidate]:
        """Return the candidates of steps in which the layer guesses: each row's better drafts."""
        most, found = self._sizes[-1], []
        rates = self._layer.smoothed(_RIGHT)
        for record in self._records.values():
            candidate = _looked_up(record) if _promising(record) else None
            if record.layer is not None:
                drafted = Drafted.of(record.layer.given(rates))
                if candidate is None or drafted.tokens(most) > candidate.expected.tokens(most):
                    candidate = _Candidate(record, drafted, True)
            if candidate is not None:
                found.append(candidate)
        return found

    def _forget_layer(self) -> None:
        """Forget how many drafts of the layer were right, so that it is tried again."""
        self._layer = DepthShares(self._depths, _WEIGHT, _MEMORY)
        self._layer_tried = self._steps
        for record in self._records.values():
            record.forget_layer()
        self._stale = True


def _looked_up(record: GuessRecord) -> _Candidate:
    return _Candidate(record, Guessed(record.right.rate, record.coverage), False)


def _promising(record: GuessRecord) -> bool:
    return record.coverage * record.right.rate >= _LEAST
