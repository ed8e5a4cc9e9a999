"""One fault at one state of one hand-off, and all that must be true of everybody afterwards."""

import asyncio
import random
import time
from dataclasses import dataclass
from enum import StrEnum

from chaos.client import Reply
from chaos.cluster import PAIRS, Ask, Cluster
from chaos.fault_point import Act
from chaos.node import DEADLINE_S
from kit.polling import until_answered

from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

S = HandoffState
WAY = (S.QUEUED, S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE)
PEER = {"p0": "d0", "d0": "p0"}
# No fault of these may end a request otherwise than so, where nobody is left to take it.
CLEAR = {common_pb2.UNAVAILABLE, common_pb2.DATA_LOSS, common_pb2.CANCELLED}
PAST = 1.3  # leases: how long a victim is away at the least
SHORT = 0.3  # leases: nobody may notice


class Fault(StrEnum):
    KILL = "kill"
    STOP = "stop"  # for longer than the lease
    CUT = "cut"  # the victim's link, for longer than the lease
    HICCUP = "hiccup"  # stopped for a part of the lease
    CANCEL = "cancel"  # the client goes
    SPOIL = "spoil"  # a bit of what the victim is sent
    LATE = "late"  # what the victim is sent comes after its ticket, while the writer is stopped


AWAY = (Fault.KILL, Fault.STOP, Fault.CUT)
"""Faults whose victim is out of reach until it is healed."""


@dataclass(frozen=True)
class Case:
    """The victim meets its fault at the moment in which `watch` moves a hand-off into `state`."""

    state: HandoffState
    watch: str  # p0 or d0
    victim: str  # p0 or d0
    fault: Fault

    def __str__(self) -> str:
        return f"{self.fault}-{self.victim}-{self.state}-at-{self.watch}"

    @property
    def act(self) -> Act:
        """The watcher's action at the move: the fault itself if the watcher is its victim."""
        if self.watch == self.victim and self.fault is Fault.KILL:
            return Act.KILL
        stops = self.fault in (Fault.STOP, Fault.HICCUP)
        return Act.STOP if self.watch == self.victim and stops else Act.WAIT

    @property
    def away(self) -> bool:
        return self.fault in AWAY

    @property
    def held_up(self) -> bool:
        """True if what is sent to the victim is held up: nothing else may be on its way there."""
        return self.fault is Fault.LATE or self.state is S.QUARANTINED

    @property
    def unwanted(self) -> bool:
        """The client has gone: before the fault, or as a part of it."""
        return self.fault is Fault.CANCEL or self.held_up


def table() -> list[Case]:
    """Every state x side that sees it x side that suffers x fault that makes sense there."""
    either, cases = ("p0", "d0"), []
    for watch, states in (("p0", WAY), ("d0", (*WAY, S.ACTIVE))):
        for state in states:
            for victim in either:
                for fault in (*AWAY, Fault.HICCUP):
                    cases.append(Case(state, watch, victim, fault))
            cases.append(Case(state, watch, "d0", Fault.CANCEL))
            if state not in (S.COMPLETE, S.ACTIVE):  # else the bytes have come
                cases += [Case(state, watch, "d0", f) for f in (Fault.SPOIL, Fault.LATE)]
    return cases


def second_faults() -> list[Case]:
    """Faults of hand-offs that are over already, but for memory that waits for a proof: over
    channels that write by themselves."""
    faults = (*AWAY, Fault.HICCUP)
    return [Case(S.QUARANTINED, "d0", victim, f) for victim in ("p0", "d0") for f in faults]


@dataclass(frozen=True)
class Told:
    """The durations of a case, in seconds on the test's clock. For reports; no test depends on
    it."""

    peer_clean_s: float
    healed_s: float
    reissued: bool


class Run:
    """One case on a cluster that is idle and whole, and is so again when it is over."""

    def __init__(self, cluster: Cluster, case: Case, rng: random.Random) -> None:
        self._cluster = cluster
        self._case = case
        self._rng = rng
        self._lease_s = cluster.lease_s
        self._ask = Ask.draw(rng, 20)
        # Further requests on the same pair are hit wherever they happen to be.
        crowd = 0 if case.held_up else rng.choice((0, 0, 2, 4))
        self._crowd = [Ask.draw(rng) for _ in range(crowd)]
        # With a second prefill, what loses its first must be answered; without, it must be told.
        alone = case.held_up or rng.random() < 0.3
        self._prefills = ["p0"] if alone else ["p0", "p1"]
        self._long_hiccup = False  # this machine was too full to end it in time

    async def run(self) -> Told:
        case, cluster, ask = self._case, self._cluster, self._ask
        watch = cluster[case.watch]
        await watch.arm(ask.request_id, case.state, case.act)
        replies = [(a, await cluster.begin(a, ["p0", "p1"], "d0")) for a in self._crowd]
        if case.state is S.QUARANTINED:
            await cluster["d0"].ask("hold")  # nothing is complete before its client goes
        replies.append((ask, await cluster.begin(ask, self._prefills, "d0")))
        if case.state is S.QUARANTINED:
            await self._cancel_with_a_ticket()
        async with asyncio.timeout(DEADLINE_S):
            await watch.reached.wait()
        began = time.monotonic()
        await self._strike()
        await self._others_are_served()
        reissued = await self._is_given_up()
        given_up_s = time.monotonic() - began
        if case.fault in (Fault.STOP, Fault.CUT):
            left_s = PAST * self._lease_s - given_up_s
            await asyncio.sleep(max(0.0, left_s))  # the fault outlasts a lease
        began = time.monotonic()
        await self._heal()
        for asked, reply in replies:
            await self._ends_right(asked, reply)
        await self._cluster.serves_again(self._rng, "p0", "d0")
        healed_s = time.monotonic() - began
        await cluster.settled("p0", "p1", "d1")
        if reissued:
            assert await cluster["d0"].ask("intact"), f"{case}: a dead ticket's memory was written"
        await cluster.settled()
        return Told(given_up_s, healed_s, reissued)

    async def _strike(self) -> None:
        case, cluster = self._case, self._cluster
        victim, watch = cluster[case.victim], cluster[case.watch]
        if watch is victim and case.fault in (Fault.SPOIL, Fault.LATE):
            watch.go()  # it must be able to answer; what it is sent still comes
        match case.fault:
            case Fault.KILL if case.act is Act.WAIT:
                victim.kill()
            case Fault.STOP | Fault.HICCUP if case.act is Act.WAIT:
                victim.stop()
            case Fault.CUT:
                assert cluster.net is not None
                await cluster.net.cut(case.victim)
            case Fault.SPOIL:
                await victim.ask("spoil")
            case Fault.LATE:
                await victim.ask("hold")
        if case.act is Act.WAIT:
            watch.go()
        match case.fault:
            case Fault.HICCUP:
                await asyncio.sleep(SHORT * self._lease_s)  # shorter than a lease
                victim.resume()
                self._long_hiccup = await cluster.held_up(case.victim)
            case Fault.CANCEL:
                await self._cancel()
            case Fault.LATE:
                await self._stop_the_writer()
                await self._cancel()

        if case.state is S.QUARANTINED and (case.victim != "d0" or not case.away):
            await cluster["d0"].ask("let_go")

    async def _cancel_with_a_ticket(self) -> None:
        name = self._ask.request_id
        await self._cluster["d0"].until(
            lambda node: S.RESERVED in node.states_of(name), f"granted {name} a ticket"
        )
        await self._cancel()

    async def _stop_the_writer(self) -> None:
        """Once what it wrote is held up, or it has written all before it could be."""
        wire, writer = self._cluster["d0"], self._cluster["p0"]

        async def is_late() -> bool:
            return bool(await wire.ask("held")) or not (await writer.books()).handoffs

        await until_answered(is_late)
        writer.stop()

    async def _cancel(self) -> None:
        await (await self._cluster.client("d0")).cancel(self._ask.request_id)

    async def _others_are_served(self) -> None:
        """Every pair that the fault does not touch."""
        case = self._case
        touched = {case.victim} if case.fault not in (Fault.CANCEL, Fault.HICCUP) else set()
        touched |= {"p0"} if case.fault is Fault.LATE else set()
        apart = [pair for pair in PAIRS if not touched.intersection(pair)]
        served = (self._cluster.serve(Ask.draw(self._rng), *pair) for pair in apart)
        await asyncio.gather(*served)

    async def _is_given_up(self) -> bool:
        """Wait until the peer has given up what the victim had, while the victim is still away.
        Return whether the ticket's memory has been given to another owner, who watches it."""
        case, cluster = self._case, self._cluster
        if not case.away and case.fault is not Fault.LATE:
            return False
        survivor = cluster["d0" if case.fault is Fault.LATE else PEER[case.victim]]
        # What maps its peers' memory may write for as long as it lives, or says that it does not.
        open_end = case.fault in (Fault.STOP, Fault.LATE) and cluster.maps_peers
        await survivor.settled(quarantine=open_end)
        if case.fault is Fault.KILL or (case.away and case.victim == "d0"):
            return False
        taken: bool = await cluster["d0"].ask("reissue", self._ask.request_id)
        if case.fault is Fault.LATE:
            await cluster["d0"].ask("let_go")
            await cluster.serve(Ask.draw(self._rng), "p1", "d0")  # the bytes have come by now
        return taken

    async def _heal(self) -> None:
        case, cluster = self._case, self._cluster
        victim = cluster[case.victim]
        match case.fault:
            case Fault.KILL:
                await victim.end()
                await cluster.start(case.victim)
            case Fault.STOP:
                victim.resume()
            case Fault.CUT:
                assert cluster.net is not None
                await cluster.net.mend(case.victim)
            case Fault.LATE:
                cluster["p0"].resume()
        if case.state is S.QUARANTINED:
            await cluster["d0"].ask("let_go")

    async def _ends_right(self, ask: Ask, reply: Reply) -> None:
        """Assert that no token is wrong, and that the answer is whole where a worker was left to
        give it. Otherwise it must end with a clear error."""
        case, right = self._case, ask.answer
        await reply.end()
        came = reply.token_ids
        assert came == right[: len(came)], f"{case}: wrong tokens"
        if reply.whole:
            assert came == right
            return
        mine = ask is self._ask
        if reply.finished is not None:
            error = reply.finished.error
            assert error.code in CLEAR and error.message, f"{case}: {reply.finished}"
            self._may_end_so(error, mine=mine)
        else:
            gone = case.victim == "d0" and case.away
            assert gone or reply.lost_by_us, f"{case}: d0 was lost: {reply.lost}"
        if mine and case.unwanted:
            return
        again = await self._replayed(ask, came)
        assert again.whole, f"{case}: replayed on d1: {again.finished or again.lost}"
        assert came + again.token_ids == right, f"{case}: wrong tokens after the replay"

    async def _replayed(self, ask: Ask, came: list[int]) -> Reply:
        """Replay the request as a router does: on another rank, with the output so far."""
        for attempt in range(2, 5):
            again = await self._cluster.begin(
                ask, ["p0", "p1"], "d1", attempt=attempt, outputs=came
            )
            await again.end()
            if not again.lost_by_us:
                break
        return again

    def _may_end_so(self, error: common_pb2.Error, *, mine: bool) -> None:
        case = self._case
        told = f"{case}: {error}"
        fallback = not mine or len(self._prefills) > 1
        if case.unwanted:
            assert mine and error.code == common_pb2.CANCELLED, told
            return
        assert case.fault is not Fault.HICCUP or self._long_hiccup, told
        assert error.code != common_pb2.CANCELLED or case.victim == "d0", told
        if case.victim == "p0" or case.fault is Fault.SPOIL:
            assert not fallback, f"{told}: p1 was there"
            assert "p0" in error.message or case.fault is Fault.SPOIL, told
