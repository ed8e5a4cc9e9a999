"""One fault at one state of one hand-off, and all that must be true of everybody afterwards."""

import asyncio
import random
import time
from dataclasses import dataclass
from enum import StrEnum

from chaos.client import Reply
from chaos.cluster import Ask, Cluster
from chaos.fault_point import Act
from chaos.node import DEADLINE_S

from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

PEER = {"p0": "d0", "d0": "p0"}
# No fault of these may end a request otherwise than so, where nobody is left to take it.
CLEAR = {common_pb2.UNAVAILABLE, common_pb2.DATA_LOSS, common_pb2.CANCELLED}


class Fault(StrEnum):
    KILL = "kill"
    STOP = "stop"  # for longer than the lease
    CUT = "cut"  # the victim's link, for longer than the lease


@dataclass(frozen=True)
class Case:
    """The victim meets its fault at the moment in which `watch` moves a hand-off into `state`."""

    state: HandoffState
    watch: str  # p0 or d0
    victim: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault}-{self.victim}-{self.state}-at-{self.watch}"

    @property
    def own(self) -> bool:
        """The victim does it to itself, in the very move."""
        return self.watch == self.victim and self.fault is not Fault.CUT


@dataclass(frozen=True)
class Told:
    """What a case took, in seconds on the test's clock. For reports; no test depends on it."""

    peer_clean_s: float
    healed_s: float
    reissued: bool


class Run:
    """One case on a cluster that is idle and whole, and is so again when it is over."""

    def __init__(self, cluster: Cluster, case: Case, rng: random.Random, *, crowd: int = 0) -> None:
        """crowd: further requests on the same pair, hit wherever they happen to be."""
        self._cluster = cluster
        self._case = case
        self._rng = rng
        self._crowd = crowd
        self._peer = PEER[case.victim]

    async def run(self) -> Told:
        case, cluster = self._case, self._cluster
        ask, others = Ask.draw(self._rng, 20), [Ask.draw(self._rng) for _ in range(self._crowd)]
        watch, victim = cluster[case.watch], cluster[case.victim]
        await watch.arm(ask.request_id, case.state, Act(case.fault) if case.own else Act.WAIT)
        replies = [(other, await cluster.begin(other, ["p0", "p1"], "d0")) for other in others]
        # With a second prefill, what loses its first must be answered; without, it must be told.
        prefills = ["p0", "p1"] if self._rng.random() < 0.7 else ["p0"]
        replies.append((ask, await cluster.begin(ask, prefills, "d0")))
        async with asyncio.timeout(DEADLINE_S):
            await watch.reached.wait()
        if not case.own:
            self._strike()
            if watch is not victim or case.fault is Fault.CUT:
                await watch.ask("go")
        began = time.monotonic()
        await self._others_are_served()
        reissued = await self._peer_is_clean(ask)
        peer_clean_s = time.monotonic() - began
        began = time.monotonic()
        await self._heal()
        for asked, reply in replies:
            await self._ends_right(asked, reply, fallback=asked is not ask or len(prefills) > 1)
        await self._pair_serves_again()
        healed_s = time.monotonic() - began
        if reissued:
            assert await cluster["d0"].ask("intact"), f"{case}: a dead ticket's memory was written"
        await cluster.settled()
        return Told(peer_clean_s, healed_s, reissued)

    def _strike(self) -> None:
        match self._case.fault:
            case Fault.KILL:
                self._cluster[self._case.victim].kill()
            case Fault.STOP:
                self._cluster[self._case.victim].stop()
            case Fault.CUT:
                assert self._cluster.net is not None
                self._cluster.net.cut(self._case.victim)

    async def _others_are_served(self) -> None:
        """Every pair without the victim."""
        pairs = [(p, d) for p in ("p0", "p1") for d in ("d0", "d1")]
        apart = [pair for pair in pairs if self._case.victim not in pair]
        served = (self._cluster.serve(Ask.draw(self._rng), *pair) for pair in apart * 2)
        await asyncio.gather(*served)

    async def _peer_is_clean(self, ask: Ask) -> bool:
        """The survivor gives up what the victim had, while the victim is still away. Whether
        its ticket's memory has been given to somebody else, who watches it."""
        await self._cluster.settled(self._peer)
        if self._peer != "d0" or self._case.fault is Fault.KILL:
            return False
        taken: bool = await self._cluster["d0"].ask("reissue", ask.request_id)
        return taken

    async def _heal(self) -> None:
        match self._case.fault:
            case Fault.KILL:
                await self._cluster[self._case.victim].end()
                await self._cluster.start(self._case.victim)
            case Fault.STOP:
                self._cluster[self._case.victim].resume()
            case Fault.CUT:
                assert self._cluster.net is not None
                self._cluster.net.mend(self._case.victim)

    async def _ends_right(self, ask: Ask, reply: Reply, *, fallback: bool) -> None:
        """No wrong token, ever; the whole answer where somebody was left to give it, and a clear
        error where not."""
        case, right = self._case, ask.answer
        await reply.end()
        came = reply.token_ids
        assert came == right[: len(came)], f"{case}: wrong tokens"
        if reply.whole:
            assert came == right
            return
        if reply.finished is not None:
            error = reply.finished.error
            assert error.code in CLEAR and error.message, f"{case}: {reply.finished}"
            assert not (case.victim == "p0" and fallback), f"{case}: p1 was there: {error}"
        else:
            assert case.victim == "d0", f"{case}: d0 was lost: {reply.lost}"
        again = await self._cluster.begin(ask, ["p0", "p1"], "d1", attempt=2, outputs=came)
        await again.end()
        assert again.whole, f"{case}: replayed on d1: {again.finished or again.lost}"
        assert came + again.token_ids == right, f"{case}: wrong tokens after the replay"

    async def _pair_serves_again(self) -> None:
        """Without a restart of anybody. The first to come may still hit what the fault left."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                ask = Ask.draw(self._rng)
                reply = await (await self._cluster.begin(ask, ["p0"], "d0")).end()
                assert reply.token_ids == ask.answer[: len(reply.token_ids)]
                if reply.whole:
                    return
                await asyncio.sleep(0.02)
