"""The workers of one request."""

from typing import NamedTuple

from baton.proto.common_pb2 import StateAt
from baton.router.cluster_view.expected_states import Leaves
from baton.router.cluster_view.worker_table import Worker
from baton.router.placement.decision import Decision


class Assignment(NamedTuple):
    """The workers of one request, for one attempt. Built by the `Placer` from a `Placement`."""

    prefills: tuple[Worker, ...]  # the first is tried first; the others are fallbacks
    rank: Worker  # decodes
    state_at: StateAt | None  # the rank with the deepest cached state of the prompt; None: no rank
    here: bool  # the rank computes the prompt; else the first prefill worker does
    to_prefill: int  # prompt tokens whose state that worker will not have
    junctions: tuple[int, ...]  # tokens after which others go another way: worth a state there
    leaves: Leaves  # prefixes whose states the prompt will leave there
    decision: Decision  # what the choice was made by

    @property
    def reader(self) -> Worker:
        """The worker that computes the prompt."""
        return self.rank if self.here else self.prefills[0]
