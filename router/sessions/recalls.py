"""Requests that wait at one worker while another has a place for them."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    first: int = field(init=False)  # output tokens before the attempt
    asked: float | None = None  # when it was recalled last
    avoid: str = ""  # the prefill worker that it was recalled from; empty: it may go there again

    def __post_init__(self) -> None:
        self.first = self.stream.next_index

    @property
    def prefill(self) -> str:
        return self.assignment.reader.worker_id

    @property
    def rank(self) -> str:
        return self.assignment.rank.worker_id

    @property
    def why(self) -> str:
        """Return why it was recalled."""
        if self.avoid:
            return f"another prefill worker was idle while it waited for {self.avoid}"
        return f"{self.rank} had more requests than it runs, and another rank a free place"

    @property
    def tokens(self) -> int:
        """Return the output tokens of the attempt so far. Only the first is the prefill's."""
        return self.stream.next_index - self.first


class Recalls:
    """A rule that takes requests back from workers that have more than they run.

    A rank that has requests beyond its places gives the newest back while other ranks have free
    places, and a prefill worker while another one is idle. They wait at the router again, at
    their old turn, and that is no attempt of theirs.
    """

    def __init__(
        self, places: Callable[[], Places], idle: Callable[[], bool], clock: Callable[[], float]
    ) -> None:
        """idle: returns False while requests wait at the router: free places are theirs."""
        self._places = places
        self._idle = idle
        self._clock = clock
        self._bound: set[Bound] = set()
        self._numbers = itertools.count()

    def add(
        self, live: LiveRequest, assignment: Assignment, session: RankSession, stream: AnswerStream
    ) -> Bound:
        """Record that an attempt was started."""
        bound = Bound(live, assignment, session, stream, next(self._numbers))
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
        if not self._bound or not self._idle():
            return
        places = self._places()
        self._relieve_ranks(places)
        self._relieve_prefills(places)

    def _relieve_ranks(self, places: Places) -> None:
        free = sum(max(spare, 0) for spare in places.ranks.values()) - self._under_way()
        by_rank = _by(self._bound, lambda each: each.rank)
        for rank, spare in places.ranks.items():
            for each in by_rank[rank][: max(-spare, 0)]:
                if free > 0 and self._may(each):
                    free -= 1
                    self._ask(each, computed=True)

    def _relieve_prefills(self, places: Places) -> None:
        free = len(places.idle_prefills)
        unread = _by(
            (each for each in self._bound if not each.tokens and not each.assignment.here),
            lambda each: each.prefill,
        )
        for queue in sorted(unread.values(), key=len, reverse=True):
            if free <= 0 or len(queue) < 2 or any(each.asked is not None for each in queue):
                continue
            newest = queue[0]
            cached = len(newest.live.prefixes) - newest.assignment.to_prefill
            if not cached and self._may(newest):  # else its prefix would be computed twice
                free -= 1
                self._ask(newest, computed=False)

    def _may(self, bound: Bound) -> bool:
        asked = bound.asked
        return bound.live.returns < MOST_RETURNS and (
            asked is None or self._clock() - asked >= AGAIN_S
        )

    def _under_way(self) -> int:
        """Return the requests that were recalled and whose ranks have not answered yet."""
        now = self._clock()
        return sum(each.asked is not None and now - each.asked < AGAIN_S for each in self._bound)

    def _ask(self, bound: Bound, *, computed: bool) -> None:
        bound.asked = self._clock()
        bound.avoid = "" if computed else bound.prefill
        bound.session.recall(bound.stream, computed=computed)


def _by(bound: Iterable[Bound], key: Callable[[Bound], str]) -> dict[str, list[Bound]]:
    """Return the attempts by their worker, newest first."""
    found: dict[str, list[Bound]] = defaultdict(list)
    for each in sorted(bound, key=lambda each: -each.number):
        found[key(each)].append(each)
    return found
