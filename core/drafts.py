"""Draft tokens of one answer: who guessed them, and how many were right."""

from dataclasses import dataclass
from enum import StrEnum


class DraftSource(StrEnum):
    """A proposer of draft tokens."""

    NGRAM = "ngram"  # what followed the same tokens before, in the request itself
    PREDICTION = "prediction"  # the text that the client expects
    SHARED = "shared"  # what followed the same tokens in other answers of the same scope
    GRAMMAR = "grammar"  # what the grammar lets come alone
    MTP = "mtp"  # what the model's own layer of multi-token prediction expects


@dataclass(frozen=True)
class DraftCount:
    """The drafts of one proposer."""

    proposer: str  # a DraftSource, or one that only a newer peer knows
    proposed: int  # that were verified
    accepted: int  # that were what plain decoding draws


@dataclass(frozen=True)
class DraftUsage:
    """The drafts of one answer, on the decode rank that ended it."""

    verify_steps: int = 0  # steps in which drafts were verified
    by_proposer: tuple[DraftCount, ...] = ()  # those that proposed any

    @property
    def proposed(self) -> int:
        return sum(count.proposed for count in self.by_proposer)

    @property
    def accepted(self) -> int:
        return sum(count.accepted for count in self.by_proposer)

    def of(self, proposer: DraftSource) -> DraftCount:
        """Return the count of one proposer."""
        found = (count for count in self.by_proposer if count.proposer == proposer)
        return next(found, DraftCount(proposer, 0, 0))


NO_DRAFTS = DraftUsage()


class DraftTally:
    """The drafts of a running answer."""

    def __init__(self) -> None:
        self._steps = 0
        self._proposed = dict.fromkeys(DraftSource, 0)
        self._accepted = dict.fromkeys(DraftSource, 0)

    def add(self, sources: tuple[DraftSource, ...], accepted: int) -> None:
        """Note a step that verified a draft of each of `sources`, in order, and accepted the first
        `accepted`.
        """
        self._steps += 1
        for place, source in enumerate(sources):
            self._proposed[source] += 1
            self._accepted[source] += place < accepted

    def usage(self) -> DraftUsage:
        """Return the counts so far."""
        counts = (
            DraftCount(source.value, proposed, self._accepted[source])
            for source, proposed in self._proposed.items()
            if proposed
        )
        return DraftUsage(self._steps, tuple(counts))
