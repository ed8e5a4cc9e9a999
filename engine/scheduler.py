"""Who computes what in the next step."""

from collections.abc import Iterator

from baton.engine.batch import Batch, Row
from baton.engine.chunking import chunk_end
from baton.engine.events import Event, Scheduled
from baton.engine.request import Request, RequestState
from baton.engine.request_memory import RequestMemory
from baton.engine.row_planner import RowPlanner
from baton.engine.turns import Turn
from baton.engine.waiting_queue import WaitingQueue

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
        planner: RowPlanner,
        max_running: int,
        chunked_prefill_size: int,
        grid: int,
        held_fraction: float,
    ) -> None:
        """grid: tokens; chunks end on its multiples where they can."""
        self._memory = memory
        self._planner = planner
        self._max_running = max_running
        self._chunk = chunked_prefill_size
        self._grid = grid
        self._held_slots = max(1, int(held_fraction * max_running))
        self._held_pages = max(1, int(held_fraction * memory.total_pages))
        self.waiting = WaitingQueue()
        self.running: list[Request] = []  # in the order of their turns
        self.held: dict[int, Request] = {}  # by serial
        self._homeless: dict[int, Request] = {}  # to be handed off, nobody knows where to yet
        self._sequence = 0

    @property
    def has_work(self) -> bool:
        """A plan would not be None."""
        return bool(self.running) or self._next_admissible() is not None

    def enqueue(self, request: Request) -> None:
        self.waiting.add(request)

    def join(self, request: Request) -> None:
        """An adopted request: its state is there, it decodes from the next step on."""
        request.move(RequestState.RUNNING)
        self._insert(request)

    def hold(self, request: Request) -> None:
        request.move(RequestState.HELD)
        self.running.remove(request)
        self.held[request.serial] = request

    def destined(self, request: Request) -> None:
        """`request` has a destination: what it owns is on its way out."""
        self._homeless.pop(request.serial, None)

    def drop(self, request: Request) -> None:
        """`request` is over, wherever it stood; all that it owned is given back."""
        self.destined(request)
        if request.state is RequestState.WAITING:
            self.waiting.remove(request)
        elif request.state is RequestState.RUNNING:
            self.running.remove(request)
        else:
            del self.held[request.serial]
        request.move(RequestState.FINISHED)
        self._memory.release(request)

    @property
    def headroom(self) -> int:
        """Pages that running requests will want soon: the rest of their prompts, and one each."""
        promised = sum(
            self._memory.missing_pages(request, request.target)
            for request in self.running
            if not request.decodes
        )
        return promised + len(self.running)

    def preempted_before(self, turn: Turn) -> bool:
        """A request that had begun waits for memory, and its turn comes first."""
        return any(request.admissions and request.turn < turn for request in self.waiting)

    def plan(self, outbox: list[Event]) -> Batch | None:
        """The next step, or None when nothing can run. Moves ids and lengths, touches no tensor."""
        decode: list[Row] = []
        prefill: list[Row] = []
        self._planner.begin()
        budget = self._plan_running(decode, prefill, outbox)
        if budget:
            self._plan_waiting(prefill, budget, outbox)
        if not decode and not prefill:
            return None
        self._sequence += 1
        self._memory.launch(self._sequence)
        return Batch(self._sequence, (*decode, *prefill), len(decode))

    def _plan_running(self, decode: list[Row], prefill: list[Row], outbox: list[Event]) -> int:
        """Rows of running requests; returns what is left of the budget of prompt tokens."""
        budget = self._chunk
        running, grow, decode_row = _RUNNING, self._memory.grow, self._planner.decode_row
        # A victim's turn never comes before that of who needs its pages, so it has no row yet.
        for request in tuple(self.running):
            if request.state is not running:
                continue
            if request.decodes:
                if request.exhausted or request.awaits_token or len(decode) == self._max_running:
                    continue
                end = request.computed + 1
                if grow(request, end) or self._make_room(request, end):
                    decode.append(decode_row(request))
                    if not request.announced:
                        _announce(request, outbox)
                continue
            if budget:  # a long prompt gives way to what came later and goes first
                budget = self._plan_waiting(prefill, budget, outbox, request.turn)
            end = self._chunk_end(request, budget, first=not prefill)
            if end > request.computed and self._make_room(request, end):
                budget -= end - request.computed
                prefill.append(self._planner.row(request, end))
        return budget

    def _plan_waiting(
        self, prefill: list[Row], budget: int, outbox: list[Event], before: Turn | None = None
    ) -> int:
        """Rows of requests that are admitted, those alone whose turn comes `before` another's where
        that is given; returns what is left of the budget of prompt tokens."""
        if self._next_admissible(before) is None:
            return budget
        places = self._max_running - len(self.running) - len(self.held)
        with self._memory.admission(min(places, len(self.waiting))):
            for request in self._admissible(before):
                match = self._memory.resume(
                    request, self._planner.resume_limit(request), self._grid
                )
                if not self._memory.free_slots:
                    # The one slot that it could have holds the state that it would resume from.
                    self._memory.release(request)
                    match = self._memory.resume(request, 0, self._grid)
                end = self._chunk_end(request, budget, first=not prefill)
                if end == request.computed:
                    self._memory.release(request)
                    return budget
                self._memory.count_hit(request, match)
                # A hand-off may read a held request's pages while later chunks compute, so it
                # takes all of them at once and is never preempted.
                self._memory.admit(request, request.target if request.spec.hold else end)
                if request.spec.hold:
                    self._homeless[request.serial] = request
                self.waiting.remove(request)
                request.move(RequestState.RUNNING)
                self._insert(request)
                if not request.announced:
                    _announce(request, outbox)
                budget -= end - request.computed
                prefill.append(self._planner.row(request, end))
        return budget

    def _admissible(self, before: Turn | None) -> Iterator[Request]:
        """The head of the queue, again and again, for as long as it may be admitted."""
        while (request := self._next_admissible(before)) is not None:
            yield request

    def _next_admissible(self, before: Turn | None = None) -> Request | None:
        """In turn: a large request is not overtaken by a small one, so it cannot starve."""
        request = self.waiting.first
        if request is None or len(self.running) + len(self.held) >= self._max_running:
            return None
        if before is not None and request.turn > before:
            return None
        if request.pending:
            return None  # preempted while its last token was still being sampled
        needed = self._memory.pages_for(request.target)
        if not self._memory.free_slots or (request.spec.hold and self._too_many_homeless(needed)):
            return None
        return request if self._memory.free_pages - needed >= self.headroom else None

    def _too_many_homeless(self, needed: int) -> bool:
        """Whether one more, of `needed` pages, would let those who wait for a destination hold
        more than their part of the pool. One alone may hold all of it."""
        homeless = self._homeless.values()
        if not homeless:
            return False
        pages = sum(len(request.pages) for request in homeless) + needed
        return len(homeless) >= self._held_slots or pages > self._held_pages

    def _chunk_end(self, request: Request, budget: int, first: bool) -> int:
        budget = min(budget, self._planner.scored_limit(request) - request.computed)
        return chunk_end(request.computed, request.target, budget, self._grid, first)

    def _make_room(self, request: Request, tokens: int) -> bool:
        """Pages for `tokens` tokens, preempting who comes after `request`; false when that was
        `request` itself."""
        while not self._memory.grow(request, tokens):
            victim = next(r for r in reversed(self.running) if not r.spec.hold)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        request.move(RequestState.WAITING)
        self._memory.share_pages(request)
        self._memory.release(request)
        self._memory.count_preemption()
        self.waiting.add(request)

    def _insert(self, request: Request) -> None:
        """Keep `running` ordered; the newcomer is nearly always the last."""
        index = len(self.running)
        while index and self.running[index - 1].turn > request.turn:
            index -= 1
        self.running.insert(index, request)


def _announce(request: Request, outbox: list[Event]) -> None:
    request.announced = True
    outbox.append(Scheduled(request.request_id, request.cached_tokens, request.spec.hold))
