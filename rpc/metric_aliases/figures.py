"""The numbers that other servers' metrics show, in Baton's terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import zip_longest
from typing import Self

from prometheus_client.core import Metric

from baton.proto.worker_pb2 import EngineTotals


class Latency(Enum):
    """A duration of which a process may have a histogram, in seconds."""

    TTFT = auto()  # from arrival to the first token
    ITL = auto()  # between two output tokens
    E2E = auto()  # from arrival to the end
    QUEUE = auto()  # of waiting, before anything is computed
    PREFILL = auto()  # from the first chunk of a prompt to the first token


@dataclass(frozen=True)
class CurrentLoad:
    """The load of a process now; of a router, that of all of its workers together."""

    running: int = 0  # requests
    waiting: int = 0
    page_size: int = 0  # tokens
    pages: int = 0
    pages_held: int = 0  # by requests; what is only cached gives way to them
    slots: int = 0
    slots_held: int = 0
    memory_held: float = 0.0  # share of slots or pages, the larger; a mean weighted by pages
    host_pages: int = 0  # of tiers in the hosts' memory
    host_pages_used: int = 0


@dataclass(frozen=True)
class ServedWork:
    """The work for requests since the start of the process."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of them
    cached_host_tokens: int = 0  # of those, the ones that hosts' tiers have spared
    cached_file_tokens: int = 0  # of the cached ones, those that came from files
    output_tokens: int = 0
    outcomes: Mapping[str, int] = field(default_factory=dict)  # finish reason or error code
    latencies: Mapping[Latency, Metric] = field(default_factory=dict)  # one histogram each


@dataclass(frozen=True)
class Totals:
    """The counts of one engine since its start, or the sums of several.

    Their names are those of the fields of `EngineTotals`.
    """

    preemptions: int = 0
    drafts_proposed: int = 0
    accepted_lengths: tuple[int, ...] = ()  # place i: rows with drafts that gave i + 1 tokens
    uncached_tokens: int = 0
    adopted_tokens: int = 0
    host_hit_tokens: int = 0
    file_hit_tokens: int = 0

    @classmethod
    def from_proto(cls, message: EngineTotals) -> Self:
        return cls(
            message.preemptions,
            message.drafts_proposed,
            tuple(message.accepted_lengths),
            message.uncached_tokens,
            message.adopted_tokens,
            message.host_hit_tokens,
            message.file_hit_tokens,
        )

    def to_proto(self) -> EngineTotals:
        return EngineTotals(**vars(self))

    def __add__(self, other: "Totals") -> "Totals":
        lengths = zip_longest(self.accepted_lengths, other.accepted_lengths, fillvalue=0)
        return Totals(
            self.preemptions + other.preemptions,
            self.drafts_proposed + other.drafts_proposed,
            tuple(a + b for a, b in lengths),
            self.uncached_tokens + other.uncached_tokens,
            self.adopted_tokens + other.adopted_tokens,
            self.host_hit_tokens + other.host_hit_tokens,
            self.file_hit_tokens + other.file_hit_tokens,
        )

    @property
    def draft_rows(self) -> int:
        """Rows of steps that verified drafts."""
        return sum(self.accepted_lengths)

    @property
    def drafts_accepted(self) -> int:
        return sum(drafts * rows for drafts, rows in enumerate(self.accepted_lengths))

    @property
    def accept_length(self) -> float:
        """Tokens that a row with drafts gave its answer, on average; 0: no row had drafts."""
        rows = self.draft_rows
        return 1 + self.drafts_accepted / rows if rows else 0.0

    def accepted_at(self, place: int) -> int:
        """Return the rows whose draft at `place`, from 0, was accepted."""
        return sum(self.accepted_lengths[place + 1 :])


def accept_length(totals: Totals) -> dict[str, float]:
    """Return `avg_spec_accept_length` of SGLang's `/server_info`; nothing without drafts so far."""
    found = totals.accept_length
    return {"avg_spec_accept_length": found} if found else {}


@dataclass(frozen=True)
class Figures:
    """All numbers of one process at the moment of a scrape."""

    load: CurrentLoad
    served: ServedWork
    totals: Totals
