"""The choice of the worker that computes a prompt: a prefill worker, or a decode rank."""

import math
from collections.abc import Iterable, Iterator
from heapq import nsmallest

from baton.api.admission.room import RankRoom
from baton.router.cluster_view.queued_prefixes import QueuedPrefixes
from baton.router.placement.columns import Columns
from baton.router.placement.placed_load import PlacedLoad
from baton.router.placement.prefill_here import PrefillHere, PromptAt, sum_of

OFFERED = 4
"""Ranks that are weighed besides the policy's own, those with the fewest answers: others would lose
more. A decision at 64 ranks would take 0.4 ms more otherwise."""


class ReaderChoice:
    """Applies `PrefillHere` to the workers of the table."""

    def __init__(
        self,
        rule: PrefillHere,
        prefills: Columns,
        ranks: Columns,
        load: PlacedLoad,
        queued: QueuedPrefixes,
    ) -> None:
        """queued: the prompts that wait at the router."""
        self.rule = rule
        self._prefills = prefills
        self._ranks = ranks
        self._load = load
        self._queued = queued

    def at_prefill(self, row: int, tokens: int, link_s: float = 0.0) -> PromptAt:
        """Return a prompt at a prefill worker. tokens: of it, without what is cached there."""
        prefills = self._prefills
        behind = self._queued.prompts / max(len(prefills.staying), 1)
        load = max(prefills.reported[row], prefills.placed[row])
        status, queued = prefills.workers[row].status, prefills.queued_tokens[row]
        return PromptAt(status, queued, tokens, load, link_s, behind)

    def at_rank(self, row: int, tokens: int) -> PromptAt:
        """Return a prompt on a decode rank."""
        ranks = self._ranks
        worker = ranks.workers[row]
        answers = self._load.answers[worker.worker_id]
        if worker.share is not None:  # other routers have answers there too
            answers = max(answers, worker.status.running)
        load = max(ranks.reported[row], ranks.placed[row])
        queued = ranks.queued_tokens[row]
        return PromptAt(worker.status, queued, tokens, load, answers=answers)

    def better_rank(self, there: PromptAt, ranks: Iterable[tuple[int, int]]) -> int | None:
        """Return the row of the rank that saves most by computing the prompt; None: none does.

        ranks: rows of decode ranks, each with the tokens of the prompt that are not cached there.
        """
        if not there.queued and not there.behind:
            return None  # nothing waits that could gain
        best, most_s = None, -math.inf
        for row, tokens in nsmallest(OFFERED, self._without_prompts(ranks), key=self._answers_on):
            here = self.at_rank(row, tokens)
            if self.rule.wanted(there, here) and (saved_s := sum_of(there, here).saved_s) > most_s:
                best, most_s = row, saved_s
        return best

    def thresholds(self) -> dict[str, int]:
        """Return the most tokens of a prompt, cached nowhere, that each rank would compute itself
        now, by worker id.
        """
        shortest = self._shortest()
        return {
            name: self.rule.threshold(shortest, self.at_rank(row, 0))
            for row, name in enumerate(self._ranks.ids)
        }

    def room(self, rows: Iterable[int]) -> RankRoom:
        """Return the room of the decode ranks of these rows for the first prompt that waits."""
        most = self.idle(rows).values()
        return RankRoom(len(most), max(most, default=0))

    def idle(self, rows: Iterable[int]) -> dict[str, int]:
        """Return the most tokens of a prompt, cached nowhere, that those of these ranks would
        compute which have none to compute, by worker id. Of ranks with many answers not all.
        """
        shortest = None if self.rule.off else self._shortest()
        if shortest is None:
            return {}
        if waiting := self._queued.prompts:  # the first of them is not behind itself
            shortest = shortest._replace(behind=shortest.behind * (waiting - 1) / waiting)
        idle = self._without_prompts((row, 0) for row in rows)
        found = {
            self._ranks.ids[row]: self.rule.threshold(shortest, self.at_rank(row, tokens))
            for row, tokens in nsmallest(OFFERED, idle, key=self._answers_on)
        }
        return {name: most for name, most in found.items() if most}

    def _without_prompts(self, ranks: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        queued = self._ranks.queued_tokens
        return (each for each in ranks if not queued[each[0]])

    def _answers_on(self, rank: tuple[int, int]) -> int:
        return self._load.answers[self._ranks.ids[rank[0]]]

    def _shortest(self) -> PromptAt | None:
        """Return a prompt at the prefill worker with the shortest queue; None: none is there."""
        prefills = self._prefills
        queued, token_us = prefills.queued_tokens, prefills.prompt_token_us
        row = min(prefills.staying, key=lambda row: queued[row] * token_us[row], default=None)
        return None if row is None else self.at_prefill(row, 0)
