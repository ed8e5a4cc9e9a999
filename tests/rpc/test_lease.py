"""Tests of when a lease declares a peer lost, with a timer that the test plays."""

import asyncio
import itertools
import math
import random

import pytest

from baton.core.errors import PeerSilentError
from baton.rpc.lease import TICKS_PER_LEASE, Lease

LEASE_S = 0.04
TICKS = TICKS_PER_LEASE + 1
"""The first may come at once after the peer was heard."""


class Timer:
    """A sleep that rounds up to its granularity, as epoll does to 1 ms, and may be late besides."""

    def __init__(self, granularity_s: float = 1e-9, *late_s: float, now: float = 100.0) -> None:
        self.now = now
        self.naps = 0
        self._granularity_s = granularity_s
        self._late_s = itertools.chain(late_s, itertools.repeat(0.0))

    async def sleep(self, seconds: float) -> None:
        self.naps += 1
        assert self.naps < 1000, "a silent peer is never taken for lost"
        nap_s = math.ceil(seconds / self._granularity_s) * self._granularity_s
        self.now += nap_s + next(self._late_s)


async def lose(timer: Timer) -> float:
    """The seconds of silence after which the peer is lost."""
    began = timer.now
    with pytest.raises(PeerSilentError, match=r"p0 was silent for its lease of 0\.04 s"):
        await Lease("p0", LEASE_S).watch(sleep=timer.sleep)
    return timer.now - began


@pytest.mark.parametrize("granularity_s", [1e-9, 0.001, 0.003, LEASE_S, 10 * LEASE_S])
async def test_a_silent_peer_is_lost_however_coarse_the_timer_is(
    granularity_s: float, seeded: random.Random
) -> None:
    """Many times of the day: by the rule that forgave a nap's lateness, rounding left some 1e-12 s
    of the lease, naps of that length took a timer's tick each, and all of it was forgiven."""
    for _ in range(100):
        timer = Timer(granularity_s, now=seeded.uniform(0.0, 1e5))
        silence_s = await lose(timer)
        assert timer.naps == TICKS
        assert silence_s > 0.999 * LEASE_S


@pytest.mark.parametrize("late", [0.5, 0.95, 1.5, 100.0])
async def test_while_the_listener_is_held_up_itself_no_peer_is_silent(late: float) -> None:
    """A delay of any length counts: what the peer said meanwhile may lie unread."""
    for late_s in ([0.0, late * LEASE_S], [late * LEASE_S] * 2):
        timer = Timer(1e-9, *late_s)
        assert await lose(timer) >= LEASE_S + sum(late_s) - 1e-6
        assert timer.naps == TICKS


def test_a_peer_that_is_heard_keeps_its_lease_and_then_has_a_whole_one() -> None:
    lease = Lease("p0", LEASE_S)
    for _ in range(3):
        for _ in range(TICKS_PER_LEASE):
            lease.tick()
        lease.heard()
    for _ in range(TICKS_PER_LEASE):
        lease.tick()
    with pytest.raises(PeerSilentError):
        lease.tick()


async def test_a_watched_lease_beats_at_every_tick() -> None:
    beats: list[int] = []
    timer = Timer()
    with pytest.raises(PeerSilentError):
        await Lease("p0", LEASE_S).watch(lambda: beats.append(timer.naps), timer.sleep)
    assert beats == list(range(TICKS))


async def test_a_lease_by_the_real_clock_ends_after_silence() -> None:
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(30.0):
        with pytest.raises(PeerSilentError):
            await Lease("p0", LEASE_S).watch()
    assert asyncio.get_running_loop().time() - began > 0.95 * LEASE_S
