"""The facts by which one request was placed, kept for whoever asks why."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from baton.router.placement.policy import Policy
from baton.router.placement.prefill_here import PrefillHere, PromptAt
from baton.router.placement.view import ClusterView, PlacementRequest


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

    def seen(self) -> ClusterView:
        """Return what was seen. Of its columns only fullness, queues and speeds are of then."""
        prefill = self.view.prefill._replace(
            queued_tokens=self.queued_tokens,
            prompt_token_us=self.prompt_token_us,
            fullness=self.prefill_fullness,
        )
        decode = self.view.decode._replace(fullness=self.decode_fullness)
        return self.view._replace(prefill=prefill, decode=decode)
