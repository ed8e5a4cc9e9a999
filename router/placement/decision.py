"""The facts by which one request was placed, kept for whoever asks why."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from baton.core.role import Role
from baton.router.placement.policy import Policy
from baton.router.placement.prefill_here import PrefillHere, PromptAt
from baton.router.placement.view import ClusterView, PlacementRequest


class Excluded(StrEnum):
    """The reason why a worker could not be chosen."""

    LEAVING = "leaving"
    RETURNED = "the request was taken back from it"
    SHARE = "this router's share of it is used up"
    OTHER_RANK = "another rank is asked for"
    LOST = "it lost the request"
    FULL = "no free place, or no connection to it"


class WantedWorkers(NamedTuple):
    """The workers that one request is to have or not to have, where that leaves any."""

    only_rank: int | None  # the number of the decode rank
    numbers: Sequence[int]  # of the decode ranks, by row
    lost_on: Collection[str]  # ids of ranks
    avoid: str  # the id of a prefill worker; empty: none


class Decision(NamedTuple):
    """The facts that the `Placer` and the policy saw. One is made for each placement, so it copies
    the columns that policies weigh and no others.
    """

    policy: Policy
    request: PlacementRequest
    view: ClusterView  # its columns have gone on since: `prefill` and `decode` have what they were
    queued_tokens: Sequence[int]  # of prefill workers, as the next two
    prompt_token_us: Sequence[float]
    prefill_fullness: Sequence[float]
    decode_fullness: Sequence[float]
    reported: Mapping[str, int]  # tokens of the deepest state that each worker has said it has
    prefill_here: PrefillHere
    there: PromptAt  # the prompt at its first prefill worker
    here: PromptAt  # the prompt on the rank
    moved: bool  # the policy chose another rank, which would not compute the prompt
    wanted: WantedWorkers

    def seen(self) -> ClusterView:
        """Return what was seen. Of its columns only fullness, queues and speeds are of then."""
        prefill = self.view.prefill._replace(
            queued_tokens=self.queued_tokens,
            prompt_token_us=self.prompt_token_us,
            fullness=self.prefill_fullness,
        )
        decode = self.view.decode._replace(fullness=self.decode_fullness)
        return self.view._replace(prefill=prefill, decode=decode)

    def excluded(self, role: Role, row: int) -> Excluded | None:
        """Return why the worker of a row could not be chosen; None: it could."""
        view, wanted = self.view.of(role), self.wanted
        if row in view.candidates:
            return None
        if view.leaving[row]:
            return Excluded.LEAVING
        worker = view.worker_ids[row]
        if role is Role.PREFILL:
            return Excluded.RETURNED if worker == wanted.avoid else Excluded.SHARE
        if wanted.numbers[row] != wanted.only_rank == wanted.numbers[view.candidates[0]]:
            return Excluded.OTHER_RANK  # where that rank has left, any is a candidate
        return Excluded.LOST if worker in wanted.lost_on else Excluded.FULL
