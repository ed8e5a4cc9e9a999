"""The door of a router: who comes in, who waits, and who is next."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any

from baton.api.access.key_accounts import RESERVED_TOKENS
from baton.api.admission.drain_rate import DrainRate
from baton.api.admission.fair_queue import NOTHING, FairQueue, KeyName, Use, Waiting
from baton.api.admission.key_limit import KeyLimit
from baton.api.admission.place_step import PlaceStep, moved
from baton.api.admission.room import Room
from baton.api.admission.step_times import DecodeStepTimes
from baton.api.backend import GenerateRequest
from baton.api.errors import RETRY_AFTER_S
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.supervised import child
from baton.core.turns import turn_of

PREFILLS_AHEAD = 2
"""Requests that each prefill worker is given at once, however long: one that it computes, and one
that is there when that is done."""
PART_OF_TIMEOUT = 0.5
"""The part of its timeout that a request may wait for its turn. One that waited longer would often
be cut off half-way, and its work would be lost."""


@dataclass(frozen=True)
class QueueBounds:
    """The limits of a queue. Set at start."""

    requests: int  # beyond those that the decode ranks run at once
    tokens: int  # of prompts and answers that wait; one request alone may have more


class QueuePlace:
    """One request's place, from its arrival to its end."""

    def __init__(self, door: "AdmissionQueue", waiting: Waiting) -> None:
        self.waiting = waiting
        self.step = PlaceStep.WAITING
        self.boost = 0
        """1 if its key has less under way than another, for its share: added to its priority, so
        that it passes what the workers were given before. Set when its turn comes."""
        self.for_rank = False
        """True if only a decode rank that computes its prompt has room. Set when its turn comes."""
        self._door = door
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def turn(self) -> None:
        """Wait for the request's turn. Raises the `ApiError` that it was refused with."""
        await self._turn

    def move(self, to: PlaceStep) -> None:
        """Change the step. Raise InvariantError, unchanged, if its table has no such move."""
        self.step = moved(self.step, to)

    @property
    def waits(self) -> bool:
        return self.step is PlaceStep.WAITING

    async def changed(self, wake: Coroutine[Any, Any, None]) -> None:
        """Wait until the wait has ended, or until `wake` has."""
        other = child(wake)
        try:
            await asyncio.wait({self._turn, other}, return_when=asyncio.FIRST_COMPLETED)
            if other.done():
                other.result()
        finally:
            other.cancel()

    def wait_again(self) -> None:
        """Wait for another turn: no worker has the request. It stands where it stood."""
        self._turn = asyncio.get_running_loop().create_future()
        self._door.again(self)

    def unpin(self) -> None:
        """Let any rank serve the request."""
        self.waiting.rank = None
        self._door.call_next()

    def call(self) -> None:
        """Let the request go on. Does nothing if its client left meanwhile."""
        self.move(PlaceStep.CALLED)
        if not self._turn.done():
            self._turn.set_result(None)

    def refuse(self, error: ApiError) -> None:
        """End the wait with `error`. Does nothing once its turn has come."""
        if self.step is PlaceStep.WAITING:
            self._door.forget(self)
            if not self._turn.done():
                self._turn.set_exception(error)
                self._turn.exception()  # a client that left does not read it

    def placed(self, *, here: bool = False) -> None:
        """Note that it counts in its workers' load now. Idempotent, as a request is placed again
        after a loss. here: the rank computes the prompt, and no prefill worker has it."""
        if self.step is PlaceStep.CALLED:
            self._door.advance(self, PlaceStep.ON_RANK if here else PlaceStep.PLACED)

    def first_token(self) -> None:
        """Note that its prefill is done. Idempotent."""
        if self.step is PlaceStep.PLACED:
            self._door.advance(self, PlaceStep.ON_RANK)
        else:
            self._door.call_next()  # its rank may compute the next prompt

    def leave(self, output_tokens: int) -> None:
        """End the place. output_tokens: those that came."""
        if self.step is PlaceStep.WAITING:
            self._door.forget(self)
        self._door.leave(self, output_tokens)


class AdmissionQueue:
    """The requests of a router. Those for which the workers have no room wait here, so that they
    can still be put into another order, refused or forgotten.
    """

    def __init__(
        self,
        bounds: QueueBounds,
        room: Callable[[], Room],
        capacity: Callable[[], int],
        share_of: Callable[[KeyName], float],
        clock: Callable[[], float],
        on_refusal: Callable[[str], None] = lambda reason: None,
        limit: KeyLimit | None = None,
    ) -> None:
        """
        capacity: returns the requests that the decode ranks run at once.
        on_refusal: called with the reason of each refusal: full, displaced or timeout.
        limit: on what a key may have beside others; None: no limit.
        """
        self._bounds = bounds
        self._room = room
        self._capacity = capacity
        self._share_of = share_of
        self._on_refusal = on_refusal
        self._limit = limit or KeyLimit(0.0, DecodeStepTimes(), clock)
        self._queue = FairQueue(share_of)
        self._rate = DrainRate(clock)
        self._numbers = itertools.count()
        self._places: dict[Waiting, QueuePlace] = {}  # of all that have not left
        self._under_way: dict[KeyName, Use] = {}  # of each key, past their turn
        self._called: Counter[int | None] = Counter()  # requests of step CALLED, by named rank
        self._called_for_rank = 0  # of them, those for which only a rank has room
        self._prefilling = 0  # requests of the steps CALLED and PLACED, and their prompts' tokens
        self._prompt_tokens = 0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        return self._queue.tokens

    @property
    def unplaced(self) -> int:
        """Return the requests that have no worker yet."""
        return self.waiting + self._called.total()

    @property
    def prefilling_tokens(self) -> int:
        """Prompt tokens of the requests at prefill workers, and of those on the way."""
        return self._prompt_tokens

    @property
    def tokens_per_s(self) -> float:
        """Return how fast the queue empties; 0 before anything has waited."""
        return self._rate.tokens_per_s

    def enter(self, request: GenerateRequest) -> QueuePlace:
        """Give a request a place. Raises OVERLOADED if it cannot wait, or not in time."""
        waiting = Waiting(
            request.owner,
            turn_of(next(self._numbers), request.priority),
            expected_tokens(request),
            len(request.prompt_ids),
            request.routed_dp_rank,
            due=inf if request.deadline is None else request.deadline.at,
        )
        place = QueuePlace(self, waiting)
        room = self._room()
        over = len(self._places) + 1 - self._capacity() - self._bounds.requests
        waits = bool(self._queue) or not (
            self._may(waiting.key, room) and self._fits(waiting, room)
        )
        if waits:
            self._check_time(request)
            over_tokens = self._queue.tokens + waiting.tokens - self._bounds.tokens
            self._make_room(waiting, over, over_tokens if self._queue else 0)
            if not self._queue:
                self._rate.begin()
        elif over > 0:
            raise self._full(waiting, over)
        self._places[waiting] = place
        if waits:
            self._queue.add(waiting)
            self.call_next(room)
        else:
            self._queue.pass_by(waiting)
            self._call(place, room)
        return place

    def check(self, key: KeyName) -> None:
        """Raise OVERLOADED if any request of `key` would be refused now."""
        over = len(self._places) + 1 - self._capacity() - self._bounds.requests
        over_tokens = self._queue.tokens + 1 - self._bounds.tokens
        if over > 0 or (self._queue and over_tokens > 0):
            least = Waiting(key, (0, 0), 1, 1)
            if self._queue.victims(least, over, over_tokens, self._under_way) is None:
                raise self._full(least, over)

    def call_next(self, room: Room | None = None) -> None:
        """Let those go on for which there is room. room: None where it may be another now."""
        if not self._queue:
            return
        room = room or self._room()
        while (
            waiting := self._queue.pop(
                lambda each: self._fits(each, room), lambda key: self._may(key, room)
            )
        ) is not None:
            self._rate.left(waiting.tokens)
            if not self._queue:
                self._rate.end()
            self._call(self._places[waiting], room)

    def again(self, place: QueuePlace) -> None:
        """Take a request back that had its turn. It may wait whatever the bounds, at no cost."""
        self._count(place, -1)
        self._add_use(place.waiting, -1)
        place.move(PlaceStep.WAITING)
        place.waiting.begun = True
        if not self._queue:
            self._rate.begin()
        self._queue.add(place.waiting)
        self.call_next()

    def refuse_all(self, error: ApiError) -> None:
        """End the wait of all with `error`."""
        for place in list(self._places.values()):
            place.refuse(error)

    def forget(self, place: QueuePlace) -> None:
        """Take a request out of the queue, as if it had never come."""
        place.move(PlaceStep.LEFT)
        self._queue.remove(place.waiting)
        del self._places[place.waiting]
        if not self._queue:
            self._rate.end()

    def advance(self, place: QueuePlace, step: PlaceStep) -> None:
        """Record a step of a request that has had its turn."""
        self._count(place, -1)
        place.move(step)
        self._count(place, 1)
        self.call_next()

    def leave(self, place: QueuePlace, output_tokens: int) -> None:
        """Record the end of a request. Idempotent."""
        if place.step is PlaceStep.LEFT:
            return
        waiting = place.waiting
        self._count(place, -1)
        place.move(PlaceStep.LEFT)
        del self._places[waiting]
        self._add_use(waiting, -1)
        used = waiting.prompt_tokens + output_tokens
        self._queue.correct(waiting.key, used - waiting.tokens)
        self.call_next()

    def _call(self, place: QueuePlace, room: Room) -> None:
        """Let a request go on that is not in the queue any more."""
        waiting = place.waiting
        place.boost = self._boost(waiting.key)
        place.for_rank = not self._prefill_fits(waiting, room)
        waiting.tried = room.changes if place.for_rank else None
        self._add_use(waiting, 1)
        place.call()
        self._count(place, 1)

    def _count(self, place: QueuePlace, by: int) -> None:
        """Count a request in those of its step, or out of them."""
        if place.step is PlaceStep.CALLED:
            self._called[place.waiting.rank] += by
            self._called_for_rank += by * place.for_rank
        if place.step in (PlaceStep.CALLED, PlaceStep.PLACED):
            self._prefilling += by
            self._prompt_tokens += by * place.waiting.prompt_tokens

    def _add_use(self, waiting: Waiting, by: int) -> None:
        requests, tokens = self._under_way.get(waiting.key, NOTHING)
        self._under_way[waiting.key] = Use(requests + by, tokens + by * waiting.tokens)
        self._limit.note(waiting.key, requests + by)

    def _may(self, key: KeyName, room: Room) -> bool:
        return self._limit.allows(key, len(room.by_rank))

    def _fits(self, waiting: Waiting, room: Room) -> bool:
        rank = waiting.rank
        if room.decode is None or room.decode <= self._called.total():
            return False
        if rank is not None and room.by_rank.get(rank, 0) <= self._called[rank]:
            return False
        return self._prefill_fits(waiting, room) or self._rank_fits(waiting, room)

    def _prefill_fits(self, waiting: Waiting, room: Room) -> bool:
        # On one that it shares, a router has one at least; the others are counted by tokens.
        if self._prefilling < PREFILLS_AHEAD * room.prefill_workers - room.shared_prefills:
            return True
        return self._prompt_tokens + waiting.prompt_tokens <= room.prompt_tokens

    def _rank_fits(self, waiting: Waiting, room: Room) -> bool:
        """Return True if a decode rank would compute the prompt. What none took is offered again
        once something else was placed, or has ended."""
        if waiting.tried == room.changes:
            return False
        ranks, most = room.on_ranks()
        return ranks > self._called_for_rank and waiting.prompt_tokens <= most

    def _boost(self, key: KeyName) -> int:
        if self._under_way.keys() <= {key}:
            return 0
        own = self._under_way.get(key, NOTHING).tokens / self._share_of(key)
        others = (
            use.tokens / self._share_of(name)
            for name, use in self._under_way.items()
            if name != key and use.tokens
        )
        return int(max(others, default=0.0) > own)

    def _make_room(self, waiting: Waiting, requests: int, tokens: int) -> None:
        """Refuse as many requests of other keys as must go. Raises OVERLOADED if none may."""
        victims = self._queue.victims(waiting, requests, tokens, self._under_way)
        if victims is None:
            raise self._full(waiting, requests)
        for each in victims:
            self._on_refusal("displaced")
            self._places[each].refuse(
                ApiError(
                    ErrorCode.OVERLOADED,
                    "requests of other API keys need this one's room in the queue; send it again "
                    "later",
                    retry_after_s=self._retry_after(each),
                )
            )

    def _check_time(self, request: GenerateRequest) -> None:
        """Raise OVERLOADED for a request whose turn would come too late."""
        deadline = request.deadline
        if deadline is None:
            return
        wait_s = self._rate.seconds_for(self._queue.tokens_before(request.owner), 0.0)
        if wait_s > PART_OF_TIMEOUT * deadline.timeout_s:
            self._on_refusal("timeout")
            raise ApiError(
                ErrorCode.OVERLOADED,
                f"the request would wait for some {wait_s:.1f} s, more than half of its timeout; "
                "send it again later, or with a longer timeout",
                expected=f"at most {PART_OF_TIMEOUT * deadline.timeout_s:g} s",
                actual=f"{wait_s:.1f} s",
                retry_after_s=wait_s - PART_OF_TIMEOUT * deadline.timeout_s,
            )

    def _full(self, waiting: Waiting, requests: int) -> ApiError:
        """Return the error of a full queue. requests: how many are too many, if it is those."""
        self._on_refusal("full")
        found, bound = len(self._places), self._capacity() + self._bounds.requests
        what, expected = "requests are here", f"fewer than {bound}"
        if requests <= 0:
            found, bound = self._queue.tokens, self._bounds.tokens
            what, expected = "tokens of requests wait", f"at most {bound} with this request's"
        return ApiError(
            ErrorCode.OVERLOADED,
            f"{found} {what} already; send it again later",
            expected=expected,
            actual=str(found),
            retry_after_s=self._retry_after(waiting),
        )

    def _retry_after(self, waiting: Waiting) -> float:
        """Return when to come again: by then what waits now is served, and others came less."""
        return self._rate.seconds_for(self._queue.tokens + waiting.tokens, RETRY_AFTER_S)


def expected_tokens(request: GenerateRequest) -> int:
    """Return the tokens that a request takes in the queue: its prompt, and the longest answer that
    it asks for, up to what API keys reserve for one."""
    return len(request.prompt_ids) + min(request.sampling.max_tokens, RESERVED_TOKENS)
