"""Guesses from the text that a client expects its answer to be."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.core.drafts import DraftSource
from baton.engine.request.request import Request
from baton.engine.speculation.ngram import LONGEST, SHORTEST

SEARCHED = 4096
"""Tokens of a prediction that are searched in each direction where an answer has left it: a step
waits for that.
"""


class _Place:
    """The place in a prediction that one answer has got to."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = np.array(prediction, np.int64)
        self._next = 0  # of the prediction, if the answer follows it
        self._seen = 0  # tokens of the answer
        self._follows = True

    def follow(self, output: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the rest of the prediction behind an answer; empty where it is not in it."""
        new = output[self._seen :]
        self._seen = len(output)
        ahead = self._prediction[self._next : self._next + len(new)]
        if self._follows and ahead.tolist() == new:
            self._next += len(new)
        elif new:
            self._find(output[-LONGEST:])
        return self._prediction[self._next :] if self._follows else self._prediction[:0]

    def _find(self, tail: Sequence[int]) -> None:
        """Look for the longest end of the answer: behind the place so far, or else before it."""
        first = max(0, self._next - SEARCHED)
        text = self._prediction[first : self._next + SEARCHED]
        same = np.zeros(len(text) + 1, np.int64)  # tokens before each place that are the last ones
        alike = np.ones(len(text) + 1, np.bool_)
        for back, token in enumerate(reversed(tail), 1):
            alike[:back] = False
            alike[back:] &= text[: len(text) + 1 - back] == token
            same += alike
        best = int(same.max())
        self._follows = best >= SHORTEST
        if self._follows:
            places = first + np.flatnonzero(same == best)
            behind = places[places >= self._next]
            self._next = int(behind[0] if len(behind) else places[0])


class PredictionSource:
    """Guesses that an answer goes on as the client's prediction does: from its beginning, and where
    the answer left it, from where the last few tokens are in it.
    """

    name = DraftSource.PREDICTION

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}  # by serial

    def guesses(self, request: Request, most: int) -> Sequence[int]:
        """See `TextSource`."""
        prediction = request.spec.prediction_ids
        if not prediction:
            return ()
        place = self._places.get(request.serial)
        if place is None:
            place = self._places[request.serial] = _Place(prediction)
        rest: list[int] = place.follow(request.output)[:most].tolist()
        return rest

    def verified(self, request: Request, source: DraftSource, drafts: int, accepted: int) -> None:
        """See `TextSource`."""

    def forget(self, request: Request) -> None:
        """See `TextSource`."""
        self._places.pop(request.serial, None)

    def ended(self, request: Request) -> None:
        """See `TextSource`."""
