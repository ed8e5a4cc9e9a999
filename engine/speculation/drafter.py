"""The drafts of a row: a proposer's guesses, as far as the request may go on."""

from baton.engine.choices import SpeculativeAlgorithm
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.schedule.draw import Draw
from baton.engine.schedule.request import Request
from baton.engine.speculation.drafts import NO_DRAFTS, Drafts
from baton.engine.speculation.ngram import NgramProposer
from baton.engine.speculation.proposer import Proposer
from baton.text.errors import GrammarError


class Drafter:
    """Asks a proposer, and keeps what verification could accept."""

    def __init__(self, proposer: Proposer, window: int, vocab_size: int) -> None:
        """window: tokens that a step verifies of a request, its newest one among them."""
        self._proposer = proposer
        self._most = window - 1
        self._vocab_size = vocab_size

    def drafts(self, request: Request, most: int) -> Drafts:
        """Return at most `most` drafts for a request whose tokens are all known.

        The answer never gets past its length: a row samples one token more than it has drafts.
        """
        left = request.stopper.limit - request.drawn - 1
        most = min(most, self._most, left)
        if most <= 0 or request.pending:
            return NO_DRAFTS
        known = request.known_ids
        proposed = tuple(self._proposer.propose(request.serial, known, most))[:most]
        valid = (i for i, t in enumerate(proposed) if not 0 <= t < self._vocab_size)
        proposed = proposed[: next(valid, most)]
        return _drawn_behind(request, proposed)

    def forget(self, request: Request) -> None:
        """Note that a request has ended."""
        self._proposer.forget(request.serial)


def drafter_of(
    config: EngineConfig, model: ModelConfig, proposer: Proposer | None = None
) -> Drafter | None:
    """Return the drafter that the options call for; None where steps verify nothing.

    proposer: in place of that of the options.
    """
    if config.speculative_algorithm is SpeculativeAlgorithm.OFF:
        return None
    return Drafter(proposer or NgramProposer(), config.window, model.vocab_size)


def _drawn_behind(request: Request, proposed: tuple[int, ...]) -> Drafts:
    """Return the drafts that the rules of the answer allow, with the draw behind each: by the
    minimum length and the masks that plain decoding has there.
    """
    sampling, rules = request.spec.sampling, request.rules
    kept: list[int] = []
    draws: list[Draw] = []
    rules = None if rules is None else rules.fork()
    for place, token in enumerate(proposed, 1):
        allowed = None
        if rules is not None:
            try:
                if not rules.allows(token):
                    break
                rules.push(token)
                if rules.ended:
                    break
                allowed = rules.allowed()
            except GrammarError:
                break  # plain decoding meets it, if it comes so far
        short = request.drawn + place < sampling.min_tokens and bool(request.stopper.stop_ids)
        kept.append(token)
        draws.append(Draw(sampling, short, allowed))
    return Drafts(tuple(kept), tuple(draws))
