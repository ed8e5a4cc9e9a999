"""The choice of the requests and tokens of the next step."""

from collections.abc import Iterable, Iterator
from time import perf_counter

from baton.core.turns import Turn
from baton.engine.cache.cached_pools import CachedPools
from baton.engine.memory.table_changes import NO_ENTRIES, TableEntries
from baton.engine.request.events import Event, Scheduled
from baton.engine.request.request import Request, RequestState
from baton.engine.schedule.chunking import PromptBudget, chunk_end
from baton.engine.schedule.donations import Donations
from baton.engine.schedule.request_memory import RequestMemory
from baton.engine.schedule.row_planner import RowPlanner
from baton.engine.schedule.step_speeds import StepSpeeds
from baton.engine.schedule.waiting_queue import WaitingQueue
from baton.engine.settings.choices import MixedBudget
from baton.engine.step.batch import Batch, Row
from baton.engine.step.plain_rows import PlainRows

_RUNNING = RequestState.RUNNING  # the member: looking it up for each row would show


class Scheduler:
    """Continuous batching: rows that decode first, then prompt chunks under a budget of tokens.

    One order holds in everything: that of the requests' turns, by age and priority. When pages run
    out, the last of those that run gives back what it owns, and is recomputed later from its prompt
    and output.
    """

    def __init__(
        self,
        memory: RequestMemory,
        donations: Donations,
        planner: RowPlanner,
        max_running: int,
        chunked_prefill_size: int,
        beside_decode: int | MixedBudget | None,
        grid: int,
        held_fraction: float,
        itl_target_s: float | None = None,
    ) -> None:
        """beside_decode, itl_target_s: see `PromptBudget`. grid: tokens; chunks end on its
        multiples where they can."""
        self._memory = memory
        self._pools = memory.pools
        self._donations = donations
        self._planner = planner
        self._max_running = max_running
        self.speeds = StepSpeeds()
        """The engine tells it what steps took."""
        self.budget = PromptBudget(chunked_prefill_size, beside_decode, self.speeds, itl_target_s)
        self._grid = grid
        self._held_slots = max(1, int(held_fraction * max_running))
        self._held_pages = max(1, int(held_fraction * memory.pools.total_pages))
        self.waiting = WaitingQueue()
        self.running: list[Request] = []  # in the order of their turns
        self.held: dict[int, Request] = {}  # by serial
        self._awaiting_destination: dict[
            int, Request
        ] = {}  # to be handed off, nobody knows where to yet
        self._sequence = 0

    @property
    def has_work(self) -> bool:
        """True if a plan would not be None, or will not be when a prefix has been copied."""
        first = self.waiting.first
        copying = first is not None and _awaits_copy(first, self._pools)
        return copying or bool(self.running) or self.next_admissible() is not None

    def enqueue(self, request: Request) -> None:
        self.waiting.add(request)

    def join(self, request: Request) -> None:
        """Let an adopted request, whose state is there, decode from the next step on."""
        request.move(RequestState.RUNNING)
        self._insert(request)

    def hold(self, request: Request) -> None:
        request.move(RequestState.HELD)
        self._planner.leave(request)
        self.running.remove(request)
        self.held[request.serial] = request

    def destined(self, request: Request) -> None:
        """Note that `request` has a destination: what it owns is on its way out."""
        self._awaiting_destination.pop(request.serial, None)

    def drop(self, request: Request) -> None:
        """End `request`, wherever it stands, and free all that it owns."""
        self.destined(request)
        self._planner.leave(request)
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self.running.remove(request)
        else:
            del self.held[request.serial]
        request.move(RequestState.FINISHED)
        self._memory.release(request)

    @property
    def admitted(self) -> int:
        """Requests that own memory."""
        return len(self.running) + len(self.held)

    @property
    def headroom(self) -> int:
        """Pages that running requests will want soon: the rest of their prompts, and one each."""
        promised = sum(
            self._memory.missing_pages(request, request.target)
            for request in self._planner.single.values()
            if not request.decodes
        )
        return promised + len(self.running)

    def preempted_before(self, turn: Turn) -> bool:
        """Return true if a preempted request waits for memory and its turn comes before `turn`."""
        return any(request.admissions and request.turn < turn for request in self.waiting)

    def leave_plain(self, request: Request) -> None:
        """Plan the next rows of `request` one by one."""
        self._planner.leave_plain(request)

    def settle(self, rows: PlainRows) -> list[int]:
        """Note that the step of plain rows is over; see `PlainTable.settle`."""
        return self._planner.plain.settle(rows)

    def check(self, in_flight: Iterable[Batch]) -> list[str]:
        """Describe what is wrong in the books of running requests. [] when all is well.

        in_flight: the steps whose results are not processed.
        """
        rows = [row for batch in in_flight for row in batch.all_rows]
        return self._planner.check(self.running, rows)

    def plan(self, outbox: list[Event]) -> Batch | None:
        """Plan the next step; None when nothing can run, or too many rows await the step in flight.
        Moves ids and lengths, touches no tensor.
        """
        if behind := self._planner.waits(len(self.running)):
            self._memory.count_behind(behind)
            return None
        decode: list[Row] = []
        prefill: list[Row] = []
        budget = self._plan_running(self._planner.begin(), decode, prefill, outbox)
        if budget:
            self._plan_waiting(prefill, budget, outbox)
        # The last, because what goes before may preempt some of them.
        plain = self._planner.plain_rows()
        if not decode and not prefill and not plain:
            return None
        self._sequence += 1
        self._pools.launch(self._sequence)
        rows = (*decode, *prefill)
        entries = self._entries(rows)
        return Batch(self._sequence, rows, len(plain) + len(decode), entries, plain)

    def _entries(self, rows: tuple[Row, ...]) -> TableEntries:
        """Take the changes of the request tables of this step's requests."""
        changes = self._pools.table_changes
        if not changes:
            return NO_ENTRIES
        mine = {row.table_row for row in rows}
        plain = self._planner.plain
        return changes.take([row for row in changes.rows if row in mine or plain.has_row(row)])

    def _one_by_one(self, ended: list[Request]) -> list[Request]:
        """Return the running requests, in the order of their turns, whose rows are not plain, or
        have `ended` being it. Where too many run, plain rows are for those that go first.
        """
        for request in self.running[self._max_running :]:
            self.leave_plain(request)
        still = [request for request in ended if request.plain_place >= 0]
        return sorted([*still, *self._planner.single.values()], key=_turn)

    def _plan_running(
        self,
        ended: list[Request],
        decode: list[Row],
        prefill: list[Row],
        outbox: list[Event],
    ) -> int:
        """Add the rows of running requests that are planned one by one; return what is left of the
        budget of prompt tokens.

        ended: see `RowPlanner.begin`.
        """
        budget = self.budget.tokens(decoding=self._planner.some_decode)
        running = _RUNNING
        # A victim's turn comes after that of the request that needs its pages, so the victim
        # has no row in this step yet.
        for request in self._one_by_one(ended):
            if request.state is not running:
                continue
            if request.plain_place >= 0:
                if tokens := self._planner.plain_with(request):
                    if self._make_room(request, tokens):
                        self._planner.extend(request)
                    continue
                self.leave_plain(request)
            if request.decodes:
                most = self._max_running - len(self._planner.plain)
                if request.exhausted or len(decode) >= most:
                    continue
                if self._planner.awaits_token(request):
                    self._memory.count_behind()
                    continue
                if self._make_room(request, _newest(request)):
                    decode.append(self._decode_row(request))
                    if not request.announced:
                        _announce(request, outbox)
                continue
            if budget:  # a long prompt gives way to what came later and goes first
                budget = self._plan_waiting(prefill, budget, outbox, request.turn)
            end = self._chunk_end(request, budget, first=not prefill)
            if end > request.lengths.computed and self._make_room(request, end):
                budget -= end - request.lengths.computed
                prefill.append(self._planner.row(request, end))
        return budget

    def _decode_row(self, request: Request) -> Row:
        """Plan that `request`, which has a page for its newest token, computes it; and drafts, if
        there are pages for them without preempting a request.
        """
        if not self._planner.speculates:
            return self._planner.decode_row(request)
        began = perf_counter()
        drafts = self._planner.drafts(request)
        self._memory.count_guess(perf_counter() - began)
        if drafts.most and not self._memory.grow(request, _newest(request, drafts.most)):
            drafts = drafts.first(
                len(request.pages) * self._pools.page_size - request.lengths.computed - 1
            )
        if not drafts.most and not request.drafts_in_flight:
            return self._planner.decode_row(request)
        return self._planner.draft_row(request, drafts)

    def _plan_waiting(
        self, prefill: list[Row], budget: int, outbox: list[Event], before: Turn | None = None
    ) -> int:
        """Admit requests and add their rows, only those whose turn comes `before` another's where
        that is given; return what is left of the budget of prompt tokens.
        """
        if self.next_admissible(before) is None:
            return budget
        places = self._max_running - len(self.running) - len(self.held)
        with self._memory.admission(min(places, len(self.waiting))):
            for request in self._admissible(before):
                match = self._memory.resume(
                    request, self._planner.resume_limit(request), self._grid
                )
                if request.promotion is not None and request.promotion.comes_again(match.depth):
                    self._memory.release(request)
                    return budget
                if not self._pools.free_slots:
                    # The only slot that it could take holds the snapshot that it would resume from.
                    self._memory.release(request)
                    match = self._memory.resume(request, 0, self._grid)
                end = self._chunk_end(request, budget, first=not prefill)
                if end == request.lengths.computed:
                    self._memory.release(request)
                    return budget
                self._memory.count_hit(request, match)
                # A hand-off may read a held request's pages while later chunks compute, so it
                # takes all of them at once and is never preempted.
                self._memory.admit(request, request.target if request.spec.hold else end)
                if request.spec.hold:
                    self._awaiting_destination[request.serial] = request
                self.waiting.remove(request)
                request.move(RequestState.RUNNING)
                self._insert(request)
                if not request.announced:
                    _announce(request, outbox)
                budget -= end - request.lengths.computed
                prefill.append(self._planner.row(request, end))
        return budget

    def _admissible(self, before: Turn | None) -> Iterator[Request]:
        """Yield the head of the queue for as long as it may be admitted."""
        while (request := self.next_admissible(before)) is not None:
            yield request

    def next_admissible(self, before: Turn | None = None) -> Request | None:
        """Return the head of the queue if it may be admitted. Small requests do not overtake a
        large one, so it cannot starve.
        """
        request = self.waiting.first
        if request is None or len(self.running) + len(self.held) >= self._max_running:
            return None
        if before is not None and request.turn > before:
            return None
        if _awaits_copy(request, self._pools):
            return None
        if request.pending:
            return None  # preempted while its last token was still being sampled
        needed = self._pools.pages_for(request.target)
        if not self._pools.free_slots or (
            request.spec.hold and self._too_many_awaiting_destination(needed)
        ):
            return None
        return request if self._pools.free_pages - needed >= self.headroom else None

    def _too_many_awaiting_destination(self, needed: int) -> bool:
        """Return true if, with one more of `needed` pages, requests without a destination would
        hold more than their part of the pool. A single one may hold all of it.
        """
        awaiting = self._awaiting_destination.values()
        if not awaiting:
            return False
        pages = sum(len(request.pages) for request in awaiting) + needed
        return len(awaiting) >= self._held_slots or pages > self._held_pages

    def _chunk_end(self, request: Request, budget: int, first: bool) -> int:
        budget = min(budget, self._planner.scored_limit(request) - request.lengths.computed)
        return chunk_end(request.lengths.computed, request.target, budget, self._grid, first)

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Take pages for `tokens` tokens, preempting requests whose turn comes after. Returns false
        when `request` itself was preempted.
        """
        while not self._memory.grow(request, tokens):
            victim = next(r for r in reversed(self.running) if not r.spec.hold)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._planner.leave(request)
        self.running.remove(request)
        request.move(RequestState.WAITING)
        self._donations.share_pages(request)
        self._memory.release(request)
        self._memory.count_preemption()
        self.waiting.add(request)

    def _insert(self, request: Request) -> None:
        """Keep `running` ordered; the newcomer is nearly always the last."""
        index = len(self.running)
        while index and self.running[index - 1].turn > request.turn:
            index -= 1
        self.running.insert(index, request)
        self._planner.enter(request)


def _newest(request: Request, drafts: int = 0) -> int:
    """Return the tokens of a sequence up to its newest one and `drafts` behind it, at most."""
    return min(
        request.lengths.computed + request.drafts_in_flight + 1 + drafts, request.most_computed
    )


def _turn(request: Request) -> Turn:
    return request.turn


def _awaits_copy(request: Request, pools: CachedPools) -> bool:
    """Return true until it is known that no prefix of `request` is being copied into the pools."""
    promotion = request.promotion
    return pools.backup is not None and (promotion is None or not promotion.over)


def _announce(request: Request, outbox: list[Event]) -> None:
    request.announced = True
    outbox.append(
        Scheduled(
            request.request_id,
            request.cached_tokens,
            request.spec.hold,
            request.cached_kv,
            request.cached_host,
            request.cached_file,
        )
    )
