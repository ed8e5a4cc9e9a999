"""The parts of a decode rank that all its requests share."""

from dataclasses import dataclass

from baton.decode.grants import Grants
from baton.decode.quarantine import Quarantine
from baton.decode.state_returner import StateReturner
from baton.transfer.tickets import TicketTable
from baton.worker.context import WorkerContext


@dataclass(frozen=True)
class RankResources:
    """The parts of a rank that its requests and their hand-offs use."""

    context: WorkerContext
    tickets: TicketTable
    grants: Grants
    state_returner: StateReturner
    quarantine: Quarantine
