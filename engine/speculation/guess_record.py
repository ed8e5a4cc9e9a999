"""Estimates for one request: how often there are guesses, and how many of them are right."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from operator import eq

from baton.engine.request.request import Request
from baton.engine.speculation.acceptance import DepthShares, FadingShare, guessed_right

Ahead = Callable[[Request, int], Sequence[int]]
"""Returns at most so many tokens that follow in a text beside a request's own, or which its grammar
forces; none where there are none."""

_SHORTEST_GAP, _LONGEST_GAP = 4, 64  # tokens between two looks at a row without drafts
_WEIGHT = 0.5  # of the estimates without a trial: the first four tokens suffice to begin
_OF_OTHERS = 4.0  # the weight of what other requests' drafts by the model's layer were
_COMPARED = 16  # tokens, the newest ones, that a look compares with guesses
_SEARCHED = 2048  # tokens in which n-grams are looked up for that


class GuessRecord:
    """The record of one request's guesses.

    While the request verifies drafts, their results count. While it decodes plainly, its new tokens
    are compared now and then with what would have been guessed, so that guesses that have become
    right are noticed without the cost of verifying wrong ones. So they are while the model's own
    layer guesses, whose drafts are known by their results alone.
    """

    def __init__(self, request: Request, ahead: Ahead, depths: int = 0) -> None:
        """depths: drafts that the model's own layer guesses for the request, at most."""
        self.request = request
        self.drafting = False  # set by who chooses
        self.by_layer = False  # the drafts are the layer's; set by who chooses
        self._depths = depths
        self.layer: DepthShares | None = None  # its drafts; None: it guesses none
        self.forget_layer()
        self.right = FadingShare(0.5, _WEIGHT)
        self.found = FadingShare(0.0, _WEIGHT)
        self._plain_from = request.lengths.computed
        self._text: tuple[int, ...] = ()  # that may follow, of a text beside the request's own
        self._seen = 0  # tokens of the answer that were compared
        self.next_look = 0  # tokens that are computed then
        self._begin(ahead)

    @property
    def coverage(self) -> float:
        """Probability that the next step of the request has a guess."""
        return max(self.found.rate, 0.5) if self._text else self.found.rate

    def forget_layer(self) -> None:
        """Forget how many drafts of the model's layer were right."""
        if self._depths:
            self.layer = DepthShares(self._depths, _OF_OTHERS)

    def verified(self, drafts: int, accepted: int) -> None:
        """Note the result of a row that was to have drafts: those behind a wrong one were not
        tried.
        """
        self._text = ()  # its guesses have been made
        self.found.add(min(drafts, 1), 1)
        self.right.add(accepted, accepted + (accepted < drafts))

    def look(self, ahead: Ahead) -> None:
        """Compare the tokens that are new since the last look with the guesses that were not made,
        and begin to watch the next ones.
        """
        output = self.request.output
        new = output[self._seen :]
        if self._text and new:
            right = sum(takewhile(bool, map(eq, self._text, new)))
            tried = right + (right < min(len(self._text), len(new)))
            self.right.add(right, tried)
            self.found.add(tried, tried)
        elif new:
            count = min(len(new), _COMPARED)
            right, found = guessed_right(self.request.known_ids, count, _SEARCHED)
            self.right.add(right, found)
            self.found.add(found, count)
        self._begin(ahead)

    def keep_plain(self, ahead: Ahead) -> None:
        """Note that the request decodes plainly from now on: it is looked at soon."""
        self.drafting = self.by_layer = False
        self._plain_from = self.request.lengths.computed
        self._begin(ahead)

    def _begin(self, ahead: Ahead) -> None:
        computed = self.request.lengths.computed
        # Half as many again as since it is plain, so that what changes soon is seen soon.
        gap = min(max((computed - self._plain_from) // 2, _SHORTEST_GAP), _LONGEST_GAP)
        self._seen = len(self.request.output)
        self.next_look = computed + gap
        self._text = tuple(ahead(self.request, gap))
