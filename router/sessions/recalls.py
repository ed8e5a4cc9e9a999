"""Requests that wait at one worker while another has a place for them."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from baton.router.cluster_view.worker_table import Worker
from baton.router.placement.assignment import Assignment
from baton.router.placement.places import Places
from baton.router.sessions.answer_stream import AnswerStream
from baton.router.sessions.live_requests import LiveRequest
from baton.router.sessions.rank_session import RankSession

LOOK_S = 0.1
"""Between two looks: a worker that joins has its first requests within two or three."""
AGAIN_S = 0.5
"""The time until a request is asked for again that its rank did not give back."""
MOST_RETURNS = 4
"""Recalls of one request. Each costs a part of a prefill, where the prompt was computed."""


@dataclass(eq=False)
class Bound:
    """One attempt on its workers."""

    live: LiveRequest
    assignment: Assignment
    session: RankSession
    stream: AnswerStream
    number: int  # counts up: the newest is recalled first
    since: float  # when it was started
    first: int = field(init=False)  # output tokens before the attempt
    asked: float | None = None  # when it was recalled last
    avoid: str = ""  # the prefill worker that it was recalled from; empty: it may go there again
    why: str = ""  # it was recalled

    def __post_init__(self) -> None:
        self.first = self.stream.next_index

    @property
    def reader(self) -> Worker:
        return self.assignment.reader

    @property
    def rank(self) -> str:
        return self.assignment.rank.worker_id

    @property
    def cached(self) -> bool:
        """Return True if the worker that computes the prompt had some of it cached: elsewhere that
        would be computed twice."""
        return self.assignment.to_prefill < len(self.live.prefixes)

    @property
    def step_s(self) -> float:
        """Return about how long a step of the worker that computes the prompt takes."""
        status = self.reader.status
        step_us = self.reader.details.prefill_chunk * status.prompt_token_us
        return max((status.decode_step_us + step_us) / 1e6, LOOK_S)

    @property
    def tokens(self) -> int:
        """Return the output tokens of the attempt so far. Only the first is the prefill's."""
        return self.stream.next_index - self.first


class Recalls:
    """A rule that takes requests back from workers that have more than they run.

    A rank that has requests beyond its places gives the newest back while other ranks have free
    places; a prefill worker gives back a prompt that it has not begun while another one is idle,
    or a rank that would compute it; and a rank its own, while a prefill worker is idle. They wait
    at the router again, at their old turn, and that is no attempt of theirs.
    """

    def __init__(
        self, places: Callable[[], Places], idle: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        """idle: returns False while requests wait at the router: free places are theirs."""
        self._places = places
        self._idle = idle
        self._clock = clock
        self._bound: set[Bound] = set()
        self._idle_ranks: Collection[str] = ()  # at the last look, that would compute a prompt
        self._numbers = itertools.count()

    def add(
        self, live: LiveRequest, assignment: Assignment, session: RankSession, stream: AnswerStream
    ) -> Bound:
        """Record that an attempt was started."""
        bound = Bound(live, assignment, session, stream, next(self._numbers), self._clock())
        self._bound.add(bound)
        return bound

    def remove(self, bound: Bound) -> None:
        """Forget an attempt that is over. Idempotent."""
        self._bound.discard(bound)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Recall what has a better place now."""
        self._bound = {each for each in self._bound if each.tokens < 2}  # the others decode
        if not self._bound:
            return
        places = self._places()
        if self._idle():
            self._relieve_ranks(places)
            self._relieve_prefills(places)
        self._return_prompts(places)
        self._fill_ranks(places)
        self._idle_ranks = places.idle_ranks.keys()

    def _relieve_ranks(self, places: Places) -> None:
        free = sum(max(spare, 0) for spare in places.ranks.values()) - self._under_way()
        by_rank = _by(self._bound, lambda each: each.rank)
        for rank, spare in places.ranks.items():
            for each in by_rank[rank][: max(-spare, 0)]:
                if free > 0 and self._may(each):
                    free -= 1
                    why = f"{rank} had more requests than it runs, and another rank a free place"
                    self._ask(each, why, computed=True)

    def _relieve_prefills(self, places: Places) -> None:
        """Ask for a prompt for each idle prefill worker, of those that another has ahead."""
        free = len(places.idle_prefills)
        for newest in self._ahead():
            if free > 0:
                free -= 1
                why = f"another prefill worker was idle while it waited for {_name(newest)}"
                self._ask(newest, why, computed=False, avoid=_name(newest))

    def _fill_ranks(self, places: Places) -> None:
        """Ask for a prompt for each rank that would compute it, of those that prefill workers have
        ahead. While prompts wait at the router, such a rank is theirs first: only one that took
        none of them until the next look is given another.
        """
        idle = dict(places.idle_ranks)
        if not self._idle():
            idle = {name: most for name, most in idle.items() if name in self._idle_ranks}
        for newest in self._ahead():
            fits = [name for name, most in idle.items() if newest.assignment.to_prefill <= most]
            if fits:
                del idle[fits[0]]
                why = f"{fits[0]} had no prompt to compute while it waited for {_name(newest)}"
                self._ask(newest, why, computed=False, avoid=_name(newest))

    def _return_prompts(self, places: Places) -> None:
        """Ask ranks for prompts of their own that they have not begun, for idle prefill workers."""
        own = [each for each in self._bound if each.assignment.here and not each.tokens]
        free = len(places.idle_prefills) - self._under_way()
        for each in sorted(own, key=lambda each: -each.number):
            if free > 0 and not each.cached and self._may(each):
                free -= 1
                why = f"a prefill worker was idle while {each.rank} had not begun it"
                self._ask(each, why, computed=True)

    def _ahead(self) -> list[Bound]:
        """Return the newest prompt of each prefill worker that has some ahead, if it may be
        recalled, of the longest queue first."""
        unread = _by(
            (each for each in self._bound if not each.tokens and not each.assignment.here), _name
        )
        return [
            queue[0]
            for queue in sorted(unread.values(), key=len, reverse=True)
            if len(queue) > 1
            and all(each.asked is None for each in queue)
            and not queue[0].cached
            and self._may(queue[0])
        ]

    def _may(self, bound: Bound) -> bool:
        """Return True if a request may be asked for: one that has moved stays for a step."""
        now, returns = self._clock(), bound.live.returns
        if returns >= MOST_RETURNS or (returns and now - bound.since < bound.step_s):
            return False
        return bound.asked is None or now - bound.asked >= AGAIN_S

    def _under_way(self) -> int:
        """Return the requests that were recalled and whose ranks have not answered yet."""
        now = self._clock()
        return sum(each.asked is not None and now - each.asked < AGAIN_S for each in self._bound)

    def _ask(self, bound: Bound, why: str, *, computed: bool, avoid: str = "") -> None:
        """avoid: the prefill worker that it is to leave."""
        bound.asked, bound.why, bound.avoid = self._clock(), why, avoid
        bound.session.recall(bound.stream, computed=computed)


def _name(bound: Bound) -> str:
    """Return the worker that computes the prompt."""
    return bound.reader.worker_id


def _by(bound: Iterable[Bound], key: Callable[[Bound], str]) -> dict[str, list[Bound]]:
    """Return the attempts by their worker, newest first."""
    found: dict[str, list[Bound]] = defaultdict(list)
    for each in sorted(bound, key=lambda each: -each.number):
        found[key(each)].append(each)
    return found
