"""The choice of the workers that serve one request."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from baton.api.admission.room import DECODES_AHEAD, RankRoom, Room
from baton.api.errors import invalid
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.role import ROUTED_ROLES, Role
from baton.proto.common_pb2 import StateAt
from baton.router.cluster_view.expected_states import leaves
from baton.router.cluster_view.queued_prefixes import QueuedPrefixes
from baton.router.cluster_view.state_index import StateIndex
from baton.router.cluster_view.worker_table import Worker, WorkerTable
from baton.router.placement.assignment import Assignment
from baton.router.placement.columns import Columns, prompt_tokens
from baton.router.placement.decision import Decision, WantedWorkers
from baton.router.placement.in_flight import InFlight
from baton.router.placement.placed_load import PlacedLoad
from baton.router.placement.places import Places
from baton.router.placement.policy import Policy
from baton.router.placement.prefill_here import PrefillHere
from baton.router.placement.reader_choice import ReaderChoice
from baton.router.placement.view import ClusterView, Placement, PlacementRequest, RoleView
from baton.text.prefix_digest import PromptPrefixes

PREFILL_FALLBACKS = 2
"""Prefill workers that a rank may try after the first. Each try costs the client a wait, and three
lost ones in a row mean a fault that a fourth would not escape."""
NEVER_HERE = PrefillHere()


class Placer:
    """Applies the router's policy to the workers of the table."""

    def __init__(
        self,
        table: WorkerTable,
        states: StateIndex,
        reachable: Callable[[Worker], bool],
        policy: Policy,
        prefill_fallbacks: int = PREFILL_FALLBACKS,
        prefill_here: PrefillHere = NEVER_HERE,
    ) -> None:
        """
        reachable: returns True for a decode rank on which requests can be started now.
        policy: chooses the workers; used by this placer alone.
        prefill_fallbacks: prefill workers to name besides the first.
        prefill_here: when ranks compute prompts.
        """
        self._table = table
        self._states = states
        self._reachable = reachable
        self._policy = policy
        self._max_prefills = 1 + prefill_fallbacks
        self._load = PlacedLoad()
        self._prefills, self._ranks = (Columns(table, role, self._load) for role in ROUTED_ROLES)
        self._startable: list[int] | None = None  # rows of ranks; None: to be found again
        table.subscribe(lambda change: self.reach_changed())
        self._queued = QueuedPrefixes()
        self.readers = ReaderChoice(
            prefill_here, self._prefills, self._ranks, self._load, self._queued
        )

    def reach_changed(self) -> None:
        """Note that other ranks than before may be reachable."""
        self._startable = None

    @property
    def placed(self) -> Counter[str]:
        """Requests of this router that each worker is now busy with, by worker_id."""
        return self._load.requests

    def place(
        self,
        prompt: PromptPrefixes,
        only_rank: int | None = None,
        lost_on: Collection[int] = (),
        avoid: str = "",
        *,
        for_rank: bool = False,
    ) -> Assignment | None:
        """Choose workers for a prompt. Only cached states of its salt count.

        Return None when no worker of a role can take it; call `missing` for the reason.

        only_rank: the number of the decode rank to use. It is ignored once that rank has left the
            cluster. Raises INVALID_REQUEST when no rank has ever had that number.
        lost_on: registrations of ranks that lost this request before. They are used only when
            there is no other.
        avoid: the id of a prefill worker that is used only when there is no other.
        for_rank: only a rank has room for the prompt; return None also if none would compute it.
        """
        prefills, ranks, rule = self._prefills, self._ranks, self.readers.rule
        prefill_rows = self._prefill_rows(prefills, len(prompt), avoid)
        decode_rows = self._decode_rows(only_rank, lost_on)
        if not prefill_rows or not decode_rows:
            return None
        decode_rows = self._with_room(ranks, decode_rows, len(prefill_rows))
        cached = self._states.find(prompt)
        to_come = self._to_come(prompt, cached)
        view = ClusterView(
            prefills.view(prefill_rows, to_come),
            ranks.view(decode_rows, cached),
            prefills.links.differing(),
        )
        deepest = max(view.prefill.cached_tokens.values(), default=0)
        prefix = prompt.digests([deepest])[0] if deepest else 0
        size = len(prompt)
        wanted = PlacementRequest(size, self._max_prefills, prefix)
        placement = self._policy.place(view, wanted)
        if avoid and len(placement.prefills) < self._max_prefills:
            placement = _with_last(placement, avoid, prefills.workers)
        first, rank = prefills.rows[placement.prefills[0]], ranks.rows[placement.decode]
        at_prefill = self.readers.at_prefill(
            first,
            size - view.prefill.cached_tokens.get(first, 0),
            0.0 if view.links is None else view.late_s(first, rank, wanted),
        )
        held = view.decode.cached_tokens
        at_rank = self.readers.at_rank(rank, size - held.get(rank, 0))
        here = rule.wanted(at_prefill, at_rank)
        moved = None
        if not here and len(decode_rows) > 1 and not rule.off:
            others = [(row, size - held.get(row, 0)) for row in decode_rows if row != rank]
            moved = self.readers.better_rank(at_prefill, others)
        if moved is not None:
            here, rank = True, moved
            at_rank = self.readers.at_rank(rank, size - held.get(rank, 0))
        if for_rank and not here:
            return None
        if here:
            computing, cached_there = ranks.workers[rank], to_come.get(ranks.ids[rank], 0)
        else:
            computing, cached_there = prefills.workers[first], size - at_prefill.tokens
        grid = computing.details.state_grid
        junctions = self._queued.junctions(prompt, grid, cached_there)
        if deepest > cached_there and grid and deepest % grid == 0:  # a copy has it as well
            junctions.append(deepest)
        will_leave = leaves(prompt, grid, junctions)
        return Assignment(
            tuple([prefills.workers[prefills.rows[name]] for name in placement.prefills]),
            ranks.workers[rank],
            self._state_at(view.decode),
            here,
            size - cached_there,
            tuple(junctions),
            will_leave,
            Decision(
                self._policy,
                wanted,
                view,
                prefills.queued_tokens[:],
                prefills.prompt_token_us[:],
                prefills.fullness[:],
                ranks.fullness[:],
                cached,
                rule,
                at_prefill,
                at_rank,
                moved is not None,
                WantedWorkers(only_rank, ranks.numbers, self._lost_ids(lost_on), avoid),
            ),
        )

    def waiting(self, prompt: PromptPrefixes) -> AbstractContextManager[None]:
        """Return a context in which a prompt waits: those that are placed meanwhile leave the state
        after what they have in common with it.
        """
        prefills = self._prefills.workers
        return self._queued.waiting(prompt, prefills[0].details.state_grid if prefills else 0)

    def track(self, assignment: Assignment) -> InFlight:
        """Count a request in the load of its workers until it is released."""
        prefill, decode = assignment.reader, assignment.rank
        expected = self._states.expected.expect(prefill, assignment.leaves)
        return InFlight(
            prefill.worker_id, decode.worker_id, assignment.to_prefill, self._load, expected
        )

    def missing(self) -> ApiError | None:
        """Return the reason why nothing can be placed; None when something can."""
        counts = {
            Role.PREFILL: len(self._prefills.staying),
            Role.DECODE: len(self._startable_rows()),
        }
        absent = [role.value for role, count in counts.items() if not count]
        if not absent:
            return None
        return ApiError(
            ErrorCode.UNAVAILABLE,
            f"no {' and no '.join(absent)} worker is ready; registered are "
            f"{len(self._prefills.ids)} prefill and {len(self._ranks.ids)} decode; start one, or "
            "see why those that should be there do not register",
            expected="at least one worker of each role",
            actual=f"{counts[Role.PREFILL]} prefill, {counts[Role.DECODE]} decode ready",
        )

    def could_place(self, only_rank: int | None = None) -> bool:
        """Return True if the workers could be given a request now, however many they have.

        only_rank: as in `place`, with the same error.
        """
        if not self._prefills.staying:
            return False
        if only_rank is None:
            return bool(self._startable_rows())
        return bool(self._decode_rows(only_rank, ()))

    def room(self) -> Room:
        """Return the room for further requests."""
        prefills, ranks = self._prefills, self._ranks
        rows = self._startable_rows()
        if not prefills.staying or not rows:
            return Room(None)
        ahead = _ahead(len(prefills.staying), len(rows))
        most, placed, numbers = ranks.most, ranks.placed, ranks.numbers
        if ranks.shared:
            free = [_most(ranks.workers[row], ahead) - placed[row] for row in rows]
        else:
            free = [most[row] + ahead - placed[row] for row in rows]
        return Room(
            sum([each for each in free if each > 0]),
            dict(zip([numbers[row] for row in rows], free, strict=True)),
            len(prefills.staying),
            sum([prefills.most[row] for row in prefills.staying]),
            sum(prefills.workers[row].share is not None for row in prefills.staying)
            if prefills.shared
            else 0,
            _RoomOnRanks(self.readers, rows),
            self._load.changes,
        )

    def places(self) -> Places:
        """Return what the workers that stay have and could have."""
        prefills, ranks = self._prefills, self._ranks
        ids, reported, placed = prefills.ids, prefills.reported, prefills.placed
        return Places(
            {ranks.ids[row]: _free_places(ranks, row) for row in self._startable_rows()},
            [ids[row] for row in prefills.staying if not reported[row] and not placed[row]],
            self.readers.idle(self._startable_rows()),
        )

    def most(self, worker: Worker) -> int:
        """Return what all routers together may have on a worker: requests of a decode rank, prompt
        tokens of a prefill worker.
        """
        if worker.role is Role.PREFILL:
            return prompt_tokens(worker)
        prefills, ranks = self._prefills, self._ranks
        return worker.capacity + _ahead(len(prefills.staying), len(ranks.ids))

    def capacity(self) -> int:
        """Return the number of requests of this router that all decode ranks run at once."""
        ranks = self._ranks
        return sum([min(ranks.capacity[row], ranks.most[row]) for row in ranks.staying])

    def _decode_rows(self, only_rank: int | None, lost_on: Collection[int]) -> list[int]:
        ranks = self._ranks.workers
        rows = self._startable_rows()
        if only_rank is not None and not self._table.has_left(only_rank):
            self._check_number(only_rank)
            rows = [row for row in rows if ranks[row].rank == only_rank]
        if not lost_on:
            return rows
        return [row for row in rows if ranks[row].registration not in lost_on] or rows

    def _lost_ids(self, lost_on: Collection[int]) -> list[str]:
        ranks = self._ranks.workers if lost_on else ()
        return [rank.worker_id for rank in ranks if rank.registration in lost_on]

    def _startable_rows(self) -> list[int]:
        """Return the rows of the decode ranks on which requests can be started."""
        if self._startable is None:
            ranks = self._ranks
            reachable = self._reachable
            self._startable = [row for row in ranks.staying if reachable(ranks.workers[row])]
        return self._startable

    def _with_room(self, ranks: Columns, rows: list[int], prefills: int) -> list[int]:
        """Return the rows of the ranks with a free place, else of those that are given one ahead,
        else all: where the request names a rank, or a place was lost since its turn came.
        """
        placed, full = ranks.placed, ranks.full
        if not full:
            return rows
        if free := [row for row in rows if row not in full]:
            return free
        ahead, workers = _ahead(prefills, len(ranks.workers)), ranks.workers
        return [row for row in rows if placed[row] < _most(workers[row], ahead)] or rows

    def _prefill_rows(self, prefills: Columns, tokens: int, avoid: str) -> list[int]:
        """Return the rows of the workers that stay. Where routers share them, only of those that
        this one has a part of for so many prompt tokens, or nothing on; all if none has.
        """
        workers, rows = prefills.workers, prefills.staying
        if avoid:
            rows = [row for row in rows if workers[row].worker_id != avoid] or rows
        if not prefills.shared:
            return rows
        held = self._load.prompt_tokens
        return [
            row
            for row in rows
            if (worker := workers[row]).share is None
            or not prefills.placed[row]
            or held[worker.worker_id] + tokens <= worker.share
        ] or rows

    def _to_come(self, prompt: PromptPrefixes, cached: Mapping[str, int]) -> dict[str, int]:
        """Return `cached` with what prompts that are placed will leave."""
        to_come = dict(cached)
        for (name, incarnation), tokens in self._states.expected.find(prompt).items():
            worker = self._table.find(name)
            if worker is not None and worker.identity.incarnation == incarnation:
                to_come[name] = max(tokens, to_come.get(name, 0))
        return to_come

    def _state_at(self, ranks: RoleView) -> StateAt | None:
        """Return the rank with the deepest state, the first of equals; None: none has any."""
        cached = ranks.cached_tokens
        if not cached:
            return None
        deepest = max(cached.values())
        row = min([row for row, tokens in cached.items() if tokens == deepest])
        holder = self._ranks.workers[row]
        return StateAt(worker=holder.identity, tokens=deepest)

    def _check_number(self, rank: int) -> None:
        """Raise INVALID_REQUEST for a rank number that no rank has.

        Before the first rank has registered, any number may be right.
        """
        numbers = self._table.ranks()
        if numbers and rank not in numbers:
            valid = ", ".join(map(str, numbers))
            raise invalid(
                "routed_dp_rank",
                f"routed_dp_rank is {rank}; the decode ranks are {valid}",
                expected=f"one of {valid}",
                actual=rank,
            )


class _RoomOnRanks:
    """The room of ranks for prompts that they compute, weighed when it is first asked for."""

    __slots__ = ("_found", "_readers", "_rows")

    def __init__(self, readers: ReaderChoice, rows: Sequence[int]) -> None:
        self._readers = readers
        self._rows = rows
        self._found: RankRoom | None = None

    def __call__(self) -> RankRoom:
        if self._found is None:
            self._found = self._readers.room(self._rows)
        return self._found


def _with_last(placement: Placement, avoid: str, prefills: Sequence[Worker]) -> Placement:
    """Return the placement with the worker `avoid` as its last fallback, if it stays."""
    here = any(each.worker_id == avoid and not each.leaving for each in prefills)
    if not here or avoid in placement.prefills:
        return placement
    return Placement((*placement.prefills, avoid), placement.decode)


def _ahead(prefills: int, ranks: int) -> int:
    """Return the requests that each rank is given beyond those that it runs at once."""
    return -(-DECODES_AHEAD * prefills // max(ranks, 1))


def _most(rank: Worker, ahead: int) -> int:
    """Return the requests that this router may have on a rank."""
    return rank.capacity + ahead if rank.share is None else rank.share


def _free_places(ranks: Columns, row: int) -> int:
    """Return the places of a rank that are free; below 0: requests that wait there."""
    capacity, placed, share = ranks.capacity[row], ranks.placed[row], ranks.workers[row].share
    if share is None:
        return capacity - placed
    return min(capacity - max(placed, ranks.reported[row]), share - placed)
