"""Real processes that die, stop or are cut off while one reads a prefix from the other's cache.

d0 lends the state of a conversation's first turn. p0 reads it for the second turn, which d1
decodes.
p1 is there for what p0 loses.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from chaos import netns
from chaos.case import AWAY, PAST, Fault
from chaos.client import Reply, new_request_id
from chaos.cluster import UCX_TCP, Ask, Cluster, plan, running_cluster
from chaos.fault_point import Act
from chaos.node import DEADLINE_S, NodeGone
from chaos.pull_point import Moment
from engine.engines import random_prompt
from transfer.wires import PULLING

from baton.proto import common_pb2
from baton.worker.config import StateReturn
from baton.worker.prefix_fetcher import Outcome

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_TOKENS = 40  # of the first turn's answer: more than one block of the snapshots' grid
DEMAND: dict[str, Any] = {"state_return": StateReturn.DEMAND}
PLANS = {name: plan(name, options=DEMAND) for name in PULLING}
LENDER, READER, RANK = "d0", "p0", "d1"


@dataclass(frozen=True)
class Pull:
    """The victim meets its fault when the read has come to `moment`."""

    victim: str
    fault: Fault
    moment: Moment

    def __str__(self) -> str:
        who = "lender" if self.victim == LENDER else "reader"
        return f"{self.fault}-{who}-{self.moment}"

    @property
    def act(self) -> Act:
        """The reader's action at the moment: the fault itself if the reader is its victim."""
        if self.victim == READER and self.fault is not Fault.CUT:
            return Act.KILL if self.fault is Fault.KILL else Act.STOP
        return Act.WAIT


TABLE = [Pull(v, f, m) for v in (LENDER, READER) for f in AWAY for m in Moment]
SHORT = [Pull(victim, Fault.KILL, Moment.READING) for victim in (LENDER, READER)]
EVERY = pytest.mark.parametrize("cluster", PLANS, indirect=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    async with running_cluster(PLANS[request.param], linked=True) as running:
        yield running


@EVERY
@pytest.mark.parametrize("pull", SHORT, ids=str)
async def test_a_death_during_a_read(pull: Pull, cluster: Cluster) -> None:
    await suffer(cluster, pull)


@pytest.mark.chaos
@EVERY
@pytest.mark.parametrize("pull", TABLE, ids=str)
async def test_every_fault_during_a_read(pull: Pull, cluster: Cluster) -> None:
    await suffer(cluster, pull)


async def test_a_read_that_the_lender_would_have_to_answer_is_not_made() -> None:
    """UCX over TCP makes a read of messages, and aborts a lender that answers them too late. There
    the lender writes the prefix itself, by a fenced channel."""
    rng = random.Random(random.randrange(1 << 32))
    tcp = plan("nixl", options=DEMAND, env=UCX_TCP)
    async with running_cluster(tcp, linked=False) as cluster:
        reader = cluster[READER]
        await reader.arm_pull(Moment.LENT, Act.WAIT)
        await reads_a_prefix(cluster, rng)
        assert not reader.reached.is_set(), "the prefix was read where it lay"
        second, state_at = await first_turn(cluster, rng)
        reply = await cluster.begin(second, [READER, "p1"], RANK, state_at=state_at)
        cluster[LENDER].stop()
        await right(second, reply)
        await asyncio.sleep(PAST * cluster.lease_s)  # the fault outlasts a lease
        cluster[LENDER].resume()
        await cluster.settled()
        await serves_again(cluster, rng)


async def suffer(cluster: Cluster, pull: Pull) -> None:
    if pull.fault is Fault.CUT:
        if (why := netns.unavailable()) is not None:
            pytest.skip(f"no link to cut: {why}")
        if cluster.needs_no_link:
            pytest.skip("what goes by this machine's memory uses no link")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    try:
        await run(cluster, pull, random.Random(seed))
    except (AssertionError, TimeoutError, NodeGone):
        await cluster.renew()  # what failed here may not fail the next
        raise


async def run(cluster: Cluster, pull: Pull, rng: random.Random) -> None:
    await reads_a_prefix(cluster, rng)  # from here on the two are connected
    second, state_at = await first_turn(cluster, rng)
    reader = cluster[READER]
    failed = await fetches(cluster, Outcome.FAILED)
    await reader.arm_pull(pull.moment, pull.act)
    reply = await cluster.begin(second, [READER, "p1"], RANK, state_at=state_at)
    async with asyncio.timeout(DEADLINE_S):
        await reader.reached.wait()
    if pull.act is Act.WAIT:
        await strike(cluster, pull)
        reader.go()
    await right(second, reply)
    survivor = LENDER if pull.victim == READER else READER
    await cluster.settled(survivor, "p1", RANK)
    assert await cluster[survivor].ask("flush"), f"{survivor} still lends, or still reserves"
    if pull.victim == LENDER and not (pull.fault is Fault.CUT and pull.moment is Moment.READ):
        assert await fetches(cluster, Outcome.FAILED) == failed + 1
    if pull.fault is not Fault.KILL:
        await asyncio.sleep(PAST * cluster.lease_s)  # the fault outlasts a lease
    await heal(cluster, pull)
    await cluster.settled()
    assert await victim_is_whole(cluster, pull)
    await serves_again(cluster, rng)
    await reads_a_prefix(cluster, rng)
    await cluster.settled()


async def strike(cluster: Cluster, pull: Pull) -> None:
    match pull.fault:
        case Fault.KILL:
            cluster[pull.victim].kill()
        case Fault.STOP:
            cluster[pull.victim].stop()
        case Fault.CUT:
            assert cluster.net is not None
            await cluster.net.cut(pull.victim)


async def heal(cluster: Cluster, pull: Pull) -> None:
    match pull.fault:
        case Fault.KILL:
            await cluster[pull.victim].end()
            await cluster.start(pull.victim)
        case Fault.STOP:
            cluster[pull.victim].resume()
        case Fault.CUT:
            assert cluster.net is not None
            await cluster.net.mend(pull.victim)


async def victim_is_whole(cluster: Cluster, pull: Pull) -> bool:
    """Return True when nothing that the victim lent or reserved is left."""
    return bool(await cluster[pull.victim].ask("flush"))


async def first_turn(cluster: Cluster, rng: random.Random) -> tuple[Ask, common_pb2.StateAt]:
    """Serve a first turn by the reader and the lender. Returns the second turn and its state."""
    first = Ask(new_request_id(), random_prompt(rng, 30, 50), FIRST_TOKENS)
    reply = await (await cluster.begin(first, [READER], LENDER)).end()
    assert reply.whole and reply.token_ids == first.answer, reply.finished or reply.lost
    assert reply.finished is not None
    state_at = common_pb2.StateAt(
        worker=cluster[LENDER].identity, tokens=reply.finished.state_tokens
    )
    assert state_at.tokens > len(first.prompt)
    prompt = (*first.prompt, *first.answer, *random_prompt(rng, 5, 30))
    return Ask(new_request_id(), prompt, rng.randint(2, 16)), state_at


async def reads_a_prefix(cluster: Cluster, rng: random.Random) -> None:
    """One read that nothing disturbs."""
    second, state_at = await first_turn(cluster, rng)
    before = await fetches(cluster, Outcome.FETCHED)
    reply = await cluster.begin(second, [READER], RANK, state_at=state_at)
    await right(second, reply)
    assert await fetches(cluster, Outcome.FETCHED) == before + 1


async def serves_again(cluster: Cluster, rng: random.Random) -> None:
    """Ask until every pair answers without a restart; the first may meet what the fault left."""
    for pair in ((READER, LENDER), (READER, RANK), ("p1", LENDER)):
        await cluster.serves_again(rng, *pair)


async def fetches(cluster: Cluster, outcome: Outcome) -> int:
    counts: dict[str, int] = await cluster[READER].ask("fetches")
    return counts.get(outcome.value, 0)


async def right(ask: Ask, reply: Reply) -> None:
    await reply.end()
    assert reply.whole, reply.finished or reply.lost
    assert reply.token_ids == ask.answer
