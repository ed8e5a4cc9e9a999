"""Guesses of the tokens that follow a request's newest one, ready to be verified."""

from dataclasses import dataclass

from baton.core.drafts import DraftSource
from baton.engine.request.draw import Draw


@dataclass(frozen=True)
class Drafts:
    """Draft tokens, with the draw behind each; or how many the device is to guess."""

    token_ids: tuple[int, ...] = ()
    draws: tuple[Draw, ...] = ()
    guesses: int = 0
    sources: tuple[DraftSource, ...] = ()  # of each token
    depth: int = 0  # of guesses that are a tree; 0: they follow one another

    @property
    def most(self) -> int:
        """Tokens that are to be verified, at most."""
        return len(self.token_ids) or self.guesses

    @property
    def deepest(self) -> int:
        """Tokens that may be right, at most."""
        return min(self.most, self.depth) if self.depth else self.most

    def first(self, count: int) -> "Drafts":
        """Return at most the first `count`."""
        return Drafts(
            self.token_ids[:count],
            self.draws[:count],
            min(self.guesses, count),
            self.sources[:count],
            self.depth,
        )


NO_DRAFTS = Drafts()
