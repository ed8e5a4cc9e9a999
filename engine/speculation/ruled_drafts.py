"""Drafts that the rules of an answer allow, with the draw behind each."""

from array import array
from collections.abc import Sequence

from baton.core.drafts import DraftSource
from baton.engine.request.draw import Draw
from baton.engine.request.request import Request
from baton.engine.step.drafts import Drafts
from baton.text.errors import GrammarError
from baton.text.token_rules import TokenRules


class RuledDrafts:
    """The drafts of one row: guesses as far as the answer's rules allow them, by the minimum length
    and the masks that plain decoding has there. What the grammar wants next goes before guesses.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._rules = None if request.rules is None else request.rules.fork()
        self._kept: list[int] = []
        self._draws: list[Draw] = []
        self._sources: list[DraftSource] = []

    def of(self, guesses: Sequence[int], source: DraftSource, most: int) -> Drafts:
        """Return at most `most` drafts. source: of the guesses."""
        try:
            while len(self._kept) < most:
                forced = self._forced()[: most - len(self._kept)]
                if forced and not all(self._keep(token, DraftSource.GRAMMAR) for token in forced):
                    break
                done = len(self._kept)
                if forced:
                    continue
                if done >= len(guesses) or self._kept != list(guesses[:done]):
                    break
                if not self._keep(guesses[done], source):
                    break
        except GrammarError:
            pass  # plain decoding meets it, if it comes so far
        return Drafts(tuple(self._kept), tuple(self._draws), sources=tuple(self._sources))

    def _forced(self) -> Sequence[int]:
        return () if self._rules is None else self._rules.forced()

    def _keep(self, token: int, source: DraftSource) -> bool:
        """Add a draft, and return true, if the rules allow it and the answer goes on behind it."""
        request = self._request
        allowed = None if self._rules is None else _mask_behind(self._rules, token)
        if self._rules is not None and allowed is None:
            return False
        sampling = request.spec.sampling
        drawn = request.lengths.sampled + len(self._kept) + 1
        short = drawn < sampling.min_tokens and bool(request.stopper.stop_ids)
        self._kept.append(token)
        self._draws.append(Draw(sampling, short, allowed))
        self._sources.append(source)
        return True


def _mask_behind(rules: TokenRules, token: int) -> "array[int] | None":
    """Take a token. Return the mask of those behind it; None where it is not allowed, or is the
    last. Raises GrammarError.
    """
    if not rules.allows(token):
        return None
    rules.push(token)
    return None if rules.ended else rules.allowed()
