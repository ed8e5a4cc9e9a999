"""Sums that the engine keeps from its start on."""

from dataclasses import dataclass, field

from baton.core.drafts import DraftSource
from baton.engine.settings.choices import WINDOWS

MOST_TOKENS = WINDOWS[-1]
"""Tokens that a row of a step gives its answer, at most."""


def _count(meaning: str) -> int:
    """Declare a sum of `meaning`, which is also the help text of its metric."""
    return field(default=0, metadata={"meaning": meaning})


def _seconds(meaning: str) -> float:
    return field(default=0.0, metadata={"meaning": meaning})


def _lengths(meaning: str) -> tuple[int, ...]:
    """Declare a histogram of small lengths: place i has how many were i + 1. Its metric is
    `baton_engine_<field>`.
    """
    return field(default=(0,) * MOST_TOKENS, metadata={"meaning": meaning, "histogram": True})


Depths = tuple[tuple[int, ...], ...]
"""Counts of drafts, [proposer][position]: a proposer's place in `DraftSource`, and a draft's place
behind the newest token of its row, from 0."""


def _of_drafts(metric: str, meaning: str) -> Depths:
    """Declare sums of `meaning` by proposer and position. Its metric `baton_engine_<metric>_total`
    has both as labels.
    """
    counts = ((0,) * (MOST_TOKENS - 1),) * len(DraftSource)
    return field(default=counts, metadata={"meaning": meaning, "drafts": metric})


@dataclass
class Counters:
    """The engine's sums. They only grow.

    A worker exports each field as the metric `baton_engine_<field>_total`, so a new counter needs
    a field here and the statement that increments it. Histograms and sums of drafts are tuples,
    which are replaced as a whole: a copy of the counters keeps the old ones.

    Large because each metric of the engine is one field.
    """

    snapshots_written: int = _count("Snapshots of recurrent state that were planned into a step.")
    snapshots_donated: int = _count("Snapshots that the prefix cache took over.")
    snapshots_skipped: int = _count("Snapshots that were wanted when no slot was free.")
    snapshots_evicted: int = _count("Snapshots that the prefix cache evicted.")
    pages_evicted: int = _count("KV pages that the prefix cache evicted.")
    slot_shortage_bytes: int = _count(
        "Bytes that the prefix cache evicted because state slots ran short."
    )
    page_shortage_bytes: int = _count(
        "Bytes that the prefix cache evicted because KV pages ran short."
    )
    branch_points: int = _count("Admissions whose cached KV was deeper than their cached state.")
    prompt_tokens: int = _count("Prompt tokens of admitted requests.")
    state_hit_tokens: int = _count(
        "Prompt tokens that were not computed, because their state was cached."
    )
    kv_hit_tokens: int = _count("Prompt tokens whose KV was cached, with or without state.")
    adopted_tokens: int = _count("Prompt tokens of hand-offs that were adopted.")
    transfer_hit_tokens: int = _count(
        "Prompt tokens of adopted hand-offs whose KV was cached here and was not transferred."
    )
    host_hit_tokens: int = _count(
        "Prompt tokens that were not computed, because their state came back from the host's tier."
    )
    host_snapshots_saved: int = _count("Snapshots that were copied into the host's tier.")
    host_pages_saved: int = _count("KV pages that were copied into the host's tier.")
    host_recalls: int = _count(
        "Copies into the host's tier that were given up for a request that needed the memory."
    )
    host_failures: int = _count("Copies into or out of the host's tier that failed.")
    file_hit_tokens: int = _count(
        "Prompt tokens that were not computed, because their state came back from files."
    )
    file_misses: int = _count(
        "Requests of whose prompts the files had no more than the worker's memory."
    )
    files_written: int = _count("Files that were written with cached prefixes.")
    file_failures: int = _count("Files that could not be written, and that were no use to read.")
    preemptions: int = _count("Requests that gave up their memory for others.")
    rows_behind: int = _count(
        "Rows that were left out of a step, because their mask or their drafts depend on a token "
        "that the step before was still sampling."
    )
    draft_rows: int = _count("Rows of steps that verified draft tokens.")
    accepted_length_tokens: tuple[int, ...] = _lengths(
        "Tokens that a row of a step with drafts gave its answer: one, and the drafts accepted."
    )
    draft_seconds: float = _seconds("Host time spent on guessing draft tokens.")
    proposed_depths: tuple[tuple[int, ...], ...] = _of_drafts(
        "drafts_proposed", "Draft tokens that were verified."
    )
    accepted_depths: tuple[tuple[int, ...], ...] = _of_drafts(
        "drafts_accepted", "Draft tokens that were the tokens that plain decoding draws."
    )
    steps: int = _count("Steps that were planned.")
    late_compilations: int = _count(
        "Variants of GPU kernels that were compiled, or read from the compiler's cache, after the "
        "start: all requests of the worker waited meanwhile."
    )
    schedule_seconds: float = _seconds("Host time spent on planning steps.")

    @property
    def drafts_proposed(self) -> tuple[int, ...]:
        """Draft tokens that were verified, by proposer in the order of `DraftSource`."""
        return tuple(map(sum, self.proposed_depths))

    @property
    def drafts_accepted(self) -> tuple[int, ...]:
        """Draft tokens that were right, by proposer in the order of `DraftSource`."""
        return tuple(map(sum, self.accepted_depths))

    @property
    def draft_tokens(self) -> int:
        """Draft tokens that were verified, of all proposers."""
        return sum(self.drafts_proposed)

    @property
    def draft_tokens_accepted(self) -> int:
        return sum(self.drafts_accepted)
