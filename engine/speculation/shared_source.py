"""Guesses from other answers of the same scope."""

from collections.abc import Sequence

from baton.core.drafts import DraftSource
from baton.engine.request.request import Request
from baton.engine.speculation.ngram import LONGEST
from baton.engine.speculation.shared_texts import MOST_TOKENS, SharedTexts

_PAUSE = 8  # tokens for which it is not asked, after guesses that were all wrong


class SharedSource:
    """Guesses what followed the newest tokens in answers that are over, and their prompts, of the
    same `draft_scope`: where the device guesses nothing, or wrongly.
    """

    name = DraftSource.SHARED

    def __init__(self, capacity: int) -> None:
        """capacity: tokens that are kept."""
        self.texts = SharedTexts(capacity)
        self._guessed: set[int] = set()  # requests whose last guesses on the device were all right
        self._silent: dict[int, int] = {}  # by serial: tokens of an answer until it is asked again

    def guesses(self, request: Request, most: int) -> Sequence[int]:
        """See `TextSource`."""
        scope, serial = request.spec.draft_scope, request.serial
        if not scope or serial in self._guessed:
            return ()
        if len(request.output) < self._silent.get(serial, 0):
            return ()
        tail = request.known_ids[-LONGEST:]
        return self.texts.following(scope, tail, most) if len(tail) == LONGEST else ()

    def verified(self, request: Request, source: DraftSource, drafts: int, accepted: int) -> None:
        """See `TextSource`."""
        if source is DraftSource.SHARED and not accepted:
            self._silent[request.serial] = len(request.output) + _PAUSE
        guessed = source in (DraftSource.NGRAM, DraftSource.MTP)
        if guessed and accepted and accepted == drafts:
            self._guessed.add(request.serial)
        else:
            self._guessed.discard(request.serial)

    def ended(self, request: Request) -> None:
        """See `TextSource`."""
        if request.spec.draft_scope and request.output:
            self.texts.add(request.spec.draft_scope, request.known_ids[-MOST_TOKENS:])

    def forget(self, request: Request) -> None:
        """See `TextSource`."""
        self._guessed.discard(request.serial)
        self._silent.pop(request.serial, None)
