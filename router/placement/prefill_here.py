"""The choice whether a decode rank computes a prompt itself."""

from dataclasses import dataclass

from baton.router.placement.view import RoleView

MOST_HERE = 0
"""The default of `--prefill-here`: never."""


@dataclass(frozen=True)
class PrefillHere:
    """A rule that gives short prompts to the rank where the prefill workers would take longer.

    A rank that computes a prompt does not decode meanwhile, so it gets one at a time from a router,
    and none while prompts or answers that were preempted wait there.
    """

    most_tokens: int = MOST_HERE  # of a prompt, without what the rank has cached; 0: never

    def wanted(
        self, prompt_tokens: int, prefills: RoleView, prefill: str, ranks: RoleView, rank: str
    ) -> bool:
        """Return True if `rank` should compute the prompt that `prefill` would.

        Both are done with what is queued there first.
        """
        if not self.most_tokens:
            return False
        queued, tokens = _to_compute(ranks, rank, prompt_tokens)
        there = sum(_to_compute(prefills, prefill, prompt_tokens))
        return not queued and tokens <= self.most_tokens and tokens < there


def _to_compute(workers: RoleView, worker_id: str, prompt_tokens: int) -> tuple[int, int]:
    """Return the tokens that are queued on a worker, and those of the prompt."""
    row = workers.worker_ids.index(worker_id)
    return workers.queued_tokens[row], prompt_tokens - workers.cached_tokens.get(row, 0)
