"""Guesses of the tokens that follow a request's newest one, ready to be verified."""

from dataclasses import dataclass

from baton.engine.schedule.draw import Draw


@dataclass(frozen=True)
class Drafts:
    """Draft tokens, with the draw behind each."""

    token_ids: tuple[int, ...] = ()
    draws: tuple[Draw, ...] = ()

    def first(self, count: int) -> "Drafts":
        """Return at most the first `count`."""
        return Drafts(self.token_ids[:count], self.draws[:count])


NO_DRAFTS = Drafts()
