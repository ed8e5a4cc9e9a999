"""The waits of prompts for the sake of cached prefixes."""

from collections import OrderedDict

MOST_PREFIXES = 4096
"""Prefixes that are remembered: those for which prompts waited last."""


class PrefixWaits:
    """The queued tokens behind which prompts of each prefix have been put, although a queue
    elsewhere was shorter.

    Who copies a prefix as soon as the waits for it are worth the copy pays at most twice what one
    would pay who knows how many prompts of it will come.
    """

    def __init__(self, most: int = MOST_PREFIXES) -> None:
        self._most = most
        self._tokens: OrderedDict[int, int] = OrderedDict()

    def reached(self, prefix: int, tokens: int, bound: int) -> bool:
        """Add a wait behind `tokens` queued tokens, or begin anew and return True where `bound`
        would be exceeded.
        """
        waited = self._tokens.pop(prefix, 0) + tokens
        if waited > bound:
            return True
        self._tokens[prefix] = waited
        if len(self._tokens) > self._most:
            self._tokens.popitem(last=False)
        return False
