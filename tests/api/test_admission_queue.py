"""Requests at the door: those that come in, those that wait, and the next."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest
from api.known_step_times import times_of
from kit.narrowing import present

from baton.api.admission.admission_queue import AdmissionQueue, QueueBounds, QueuePlace
from baton.api.admission.key_limit import PRESENT_S, KeyLimit
from baton.api.admission.room import RankRoom, Room
from baton.api.backend import GenerateRequest
from baton.api.deadline import Deadline
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.sampling_params import SamplingParams

NO_RANK = RankRoom()


@dataclass
class Door:
    """A queue before workers that run `capacity` requests, and are given one more."""

    capacity: int = 1
    requests: int = 100
    tokens: int = 10**6
    prompt_tokens: int = 10**6
    now: float = 0.0
    refusals: list[str] = field(default_factory=list)
    placed: int = 0
    ranks: RankRoom = NO_RANK  # that would compute a prompt
    slowdown: float = 0.0  # 0: keys have no bound; a step takes 20 ms, and 4 for each request

    def __post_init__(self) -> None:
        self.queue = AdmissionQueue(
            QueueBounds(self.requests, self.tokens),
            self._room,
            lambda: self.capacity,
            lambda key: 1.0,
            lambda: self.now,
            self.refusals.append,
            KeyLimit(self.slowdown, times_of(lambda rows: 0.02 + 0.004 * rows), lambda: self.now),
        )

    def _room(self) -> Room:
        if not self.capacity:
            return Room(None)
        free = self.capacity + 1 - self.placed
        rooms = {0: free, 1: 0}
        return Room(
            free, rooms, 1, self.prompt_tokens, on_ranks=lambda: self.ranks, changes=self.placed
        )

    def enter(self, key: str | None = None, prompt: int = 10, **more: object) -> QueuePlace:
        sampling = SamplingParams(max_tokens=90)
        return self.queue.enter(
            GenerateRequest("0" * 32, (5,) * prompt, sampling, owner=key, **more)  # type: ignore[arg-type]
        )

    def place(self, place: QueuePlace, decoding: bool = True) -> None:
        """Do what a router does when the turn of a request has come."""
        self.placed += 1
        place.placed()
        if decoding:
            place.first_token()

    def end(self, place: QueuePlace, output_tokens: int = 90) -> None:
        self.placed -= 1
        place.leave(output_tokens)


def called(place: QueuePlace) -> bool:
    turn = place._turn
    return turn.done() and not turn.cancelled() and turn.exception() is None


async def test_a_request_waits_until_a_worker_has_room() -> None:
    door = Door()
    first, second, third, fourth = (door.enter() for _ in range(4))
    assert [called(each) for each in (first, second, third)] == [True, True, False]
    for each in (first, second):
        door.place(each)
    assert (door.queue.waiting, door.queue.waiting_tokens) == (2, 200)
    waits = asyncio.create_task(third.turn())
    await asyncio.sleep(0)
    assert not waits.done()
    door.end(first)
    await asyncio.wait_for(waits, 60)
    assert not called(fourth) and door.queue.waiting == 1


async def test_the_request_that_is_due_first_is_called_first() -> None:
    door = Door(capacity=0)
    late, plain, soon = (
        door.enter(deadline=deadline) for deadline in (Deadline.of(90.0), None, Deadline.of(30.0))
    )
    door.capacity = 1
    door.queue.call_next()
    assert [called(each) for each in (late, plain, soon)] == [True, False, True]
    door.place(soon)
    door.place(late)
    door.end(soon)
    assert called(plain)


async def test_a_prompt_that_its_rank_computes_takes_no_prefill_workers_room() -> None:
    door = Door(capacity=9, prompt_tokens=1)
    first, second, third, fourth = (door.enter() for _ in range(4))
    assert [called(each) for each in (second, third)] == [True, False]
    first.placed(here=True)
    assert called(third) and not called(fourth)
    second.placed()
    third.placed()
    first.first_token()
    assert not called(fourth)
    second.first_token()
    assert called(fourth)


async def test_one_that_goes_away_while_it_waits_is_never_called() -> None:
    door = Door()
    running = [door.enter() for _ in range(2)]
    for each in running:
        door.place(each)
    gone, kept = door.enter("ada"), door.enter("ada")
    waits = asyncio.create_task(gone.turn())
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    gone.leave(0)
    gone.leave(0)
    assert (door.queue.waiting, door.queue.waiting_tokens) == (1, 100)
    door.end(running[0])
    assert called(kept) and not called(gone)


async def test_one_that_goes_away_when_it_was_just_called_makes_room_again() -> None:
    door = Door()
    first, second, third = (door.enter() for _ in range(3))
    assert called(second) and not called(third)
    second.leave(0)
    assert called(third)
    first.leave(0)
    third.leave(0)
    assert (door.queue.waiting, door.queue.unplaced, door.queue._prefilling) == (0, 0, 0)
    assert door.queue._prompt_tokens == 0 and not door.queue._places


async def test_without_workers_all_wait_and_those_that_join_are_given_no_more_than_others() -> None:
    door = Door(capacity=0, requests=4)
    places = [door.enter() for _ in range(4)]
    assert not any(map(called, places))
    with pytest.raises(ApiError, match="4 requests are here already"):
        door.enter()
    door.capacity = 1
    door.queue.call_next()
    assert [called(each) for each in places] == [True, True, False, False]


async def test_one_whose_rank_was_lost_is_the_next_and_pays_once() -> None:
    door = Door(capacity=2, requests=100, tokens=450)
    running = [door.enter("ada") for _ in range(3)]
    for each in running:
        door.place(each)
    waiting = door.enter("ada")
    for each in reversed(running[:2]):  # their rank is lost
        door.placed -= 1
        each.wait_again()
    assert [called(each) for each in (*running[:2], waiting)] == [True, True, False]
    door.capacity, door.placed = 0, 0
    running[0].wait_again()
    running[1].wait_again()
    assert not any(map(called, running[:2]))
    for key in "abc":  # those that have begun are not displaced, however much their key has
        with contextlib.suppress(ApiError):
            door.enter(key)
    assert door.refusals and all(each.waits for each in running[:2])
    door.capacity = 2
    door.queue.call_next()
    assert all(map(called, running[:2]))
    for each in (*running, waiting):
        each.leave(90)
    for each in list(door.queue._places.values()):
        each.leave(0)
    flow = door.queue._queue._flows["ada"]
    assert flow.served == 300 and door.queue.unplaced == 0 and not door.queue._prefilling


async def test_a_full_queue_says_when_to_come_again_by_how_fast_it_empties() -> None:
    door = Door(requests=3)
    running = [door.enter() for _ in range(2)]
    for each in running:
        door.place(each)
    waiting = [door.enter() for _ in range(2)]
    with pytest.raises(ApiError) as unknown:
        door.enter()
    assert unknown.value.code is ErrorCode.OVERLOADED and unknown.value.retry_after_s == 1.0
    door.now += 20
    door.end(running.pop())
    door.place(waiting[0])
    door.enter()
    rate = door.queue.tokens_per_s
    with pytest.raises(ApiError) as known:
        door.enter()
    assert known.value.retry_after_s == pytest.approx(300 / rate)
    assert 2 < present(known.value.retry_after_s) < 60
    with pytest.raises(ApiError):
        door.queue.check(None)
    assert door.refusals == ["full"] * 3


async def test_a_queue_is_bounded_by_tokens_but_takes_one_request_of_any_length() -> None:
    door = Door(tokens=250)
    for _ in range(2):
        door.place(door.enter(prompt=1000))
    door.enter(prompt=2000)
    with pytest.raises(ApiError, match="2090 tokens of requests wait"):
        door.enter()
    door = Door(tokens=250)
    for _ in range(2):
        door.place(door.enter(prompt=1000))
    door.enter()
    door.queue.check(None)
    door.enter()
    with pytest.raises(ApiError, match="200 tokens of requests wait"):
        door.enter()


async def test_a_flood_makes_room_for_another_key() -> None:
    door = Door(requests=4)
    for _ in range(2):
        door.place(door.enter("ada"))
    *_, before, last = (door.enter("ada") for _ in range(3))
    with pytest.raises(ApiError):
        door.enter("ada")
    with pytest.raises(ApiError):
        door.queue.check("ada")
    door.queue.check("ben")
    mine = door.enter("ben")
    with pytest.raises(ApiError, match="other API keys need this one's room") as displaced:
        await asyncio.wait_for(last.turn(), 60)
    assert displaced.value.code is ErrorCode.OVERLOADED
    assert displaced.value.retry_after_s is not None
    assert not called(before) and door.queue.waiting == 3
    assert door.refusals == ["full", "full", "displaced"]
    last.leave(0)
    assert not called(mine)


async def test_a_request_that_would_wait_for_half_of_its_timeout_is_refused() -> None:
    door = Door()
    running = [door.enter() for _ in range(2)]
    for each in running:
        door.place(each)
    queued = [door.enter() for _ in range(3)]
    door.now += 10
    door.end(running[0])
    door.place(queued[0])
    wait_s = door.queue.waiting_tokens / door.queue.tokens_per_s
    with pytest.raises(ApiError, match="more than half of its timeout") as refused:
        door.enter(deadline=Deadline.of(1.9 * wait_s))
    assert refused.value.code is ErrorCode.OVERLOADED and refused.value.retry_after_s
    assert not called(door.enter(deadline=Deadline.of(2.1 * wait_s)))
    door.enter("ben", deadline=Deadline.of(0.1))  # nobody of its key is before it
    assert door.refusals == ["timeout"]


async def test_prompts_are_given_ahead_by_their_tokens() -> None:
    door = Door(capacity=50, prompt_tokens=100)
    long = [door.enter(prompt=90) for _ in range(3)]
    assert [called(each) for each in long] == [True, True, False], "two, however long"
    door.place(long[0], decoding=False)
    assert not called(long[2])
    long[0].first_token()
    assert called(long[2])
    door = Door(capacity=50, prompt_tokens=100)
    short = [door.enter(prompt=20) for _ in range(7)]
    assert [called(each) for each in short] == [True] * 5 + [False] * 2


async def test_a_request_for_a_full_rank_lets_others_pass() -> None:
    door = Door()
    pinned = door.enter(routed_dp_rank=1)
    assert not called(pinned) and called(door.enter(routed_dp_rank=0)) and called(door.enter())


async def test_one_of_a_key_with_little_under_way_passes_what_was_given_ahead() -> None:
    door = Door()
    flood = [door.enter("ada") for _ in range(4)]
    for each in flood[:2]:
        door.place(each)
    mine = door.enter("ben")
    assert not called(mine)
    door.end(flood[0])
    assert called(mine) and not called(flood[2])
    assert [each.boost for each in (*flood[:2], mine)] == [0, 0, 1]


async def test_a_stop_refuses_what_waits_and_leaves_what_was_called() -> None:
    door = Door()
    first, second, third = (door.enter() for _ in range(3))
    door.queue.refuse_all(ApiError(ErrorCode.UNAVAILABLE, "stopping"))
    assert called(first) and called(second)
    with pytest.raises(ApiError, match="stopping"):
        await asyncio.wait_for(third.turn(), 60)


async def test_a_flood_of_one_key_leaves_room_in_the_steps_of_another() -> None:
    door = Door(capacity=30, slowdown=1.5)
    quiet = door.enter("ben")
    door.place(quiet)
    flood = [door.enter("ada") for _ in range(20)]
    running = [each for each in flood if called(each)]
    assert len(running) == 7, "8 on two ranks take 36 ms, 1.5 times as long as 1"
    for each in running:
        door.place(each)
    door.end(running[0])
    assert [called(each) for each in flood].count(True) == 8
    door.end(quiet)
    again = door.enter("ben")
    assert called(again), "there is room for it, as the flood may not take it"
    door.place(again)
    door.end(again)
    door.now += 2 * PRESENT_S
    door.place(next(each for each in flood[7:] if called(each)))
    door.end(running[1])
    assert [called(each) for each in flood].count(True) > 15, "the other has left"


async def test_a_rank_that_would_compute_a_prompt_is_room_for_one() -> None:
    """Prefill workers have all that they are given; each idle rank is offered one prompt."""
    door = Door(capacity=9, prompt_tokens=20)
    given = [door.enter(), door.enter()]
    assert all(map(called, given)) and not any(each.for_rank for each in given)
    for each in given:
        door.place(each, decoding=False)
    long, first, second = door.enter(prompt=51), door.enter(), door.enter()
    assert not any(map(called, (long, first, second)))
    door.ranks = RankRoom(1, 50)
    door.queue.call_next()
    assert [called(each) for each in (long, first, second)] == [False, True, False]
    assert first.for_rank, "the prefill workers are not given it"
    door.placed += 1
    first.placed(here=True)
    assert called(second), "the rank has room as long as it says so"


async def test_what_no_rank_took_is_offered_again_when_something_has_changed() -> None:
    door = Door(capacity=9, prompt_tokens=20)
    for _ in range(2):
        door.place(door.enter(), decoding=False)
    door.ranks = RankRoom(1, 50)
    waiting = door.enter()
    for _ in range(2):
        assert called(waiting) and waiting.for_rank
        waiting.wait_again()  # the rank had another prompt by then
        assert not called(waiting), "not twice for the same"
        door.queue.call_next()
        assert not called(waiting)
        door.placed += 1
        door.queue.call_next()
    assert called(waiting)
    waiting.leave(0)
    assert door.queue._called_for_rank == 0


async def test_a_rank_is_offered_the_next_prompt_at_the_first_token_of_its_own() -> None:
    door = Door(capacity=9, prompt_tokens=20)
    for _ in range(2):
        door.place(door.enter(), decoding=False)
    door.ranks = RankRoom(1, 50)
    own = door.enter()
    door.ranks = RankRoom()
    door.placed += 1
    own.placed(here=True)
    following = door.enter()
    assert not called(following)
    door.ranks = RankRoom(1, 50)
    own.first_token()
    assert called(following) and following.for_rank
