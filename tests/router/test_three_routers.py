"""Three real routers before one prefill worker and one rank, and a flood through one of them."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from certificates import folder_of
from engine.engines import random_prompt
from engine.hash_model import HashModel, expected_tokens
from fake_workers import within
from kit.polling import until
from router_neighbours import Cluster, replies_of
from worker.cluster import TestWorker, decode_worker, prefill_worker, running

from baton.core.supervised import ProcessSupervisor
from baton.router.server import RouterServer

ROUTERS, PLACES, AHEAD = 3, 2, 2
FLOOD, TOKENS = 60, 12
TIMEOUT_S = 600.0
"""The requests' own: a router refuses one at once whose turn, at the speed of a busy machine, would
come after half of it. The test's deadline is shorter."""


@asynccontextmanager
async def routers_of(folder: Path) -> AsyncIterator[list[Cluster]]:
    async with AsyncExitStack() as stack:
        found = []
        for number in range(ROUTERS):
            (folder / f"{number}").mkdir()
            router = Cluster(folder / f"{number}")
            certificate = folder_of("router", f"router-{number}")
            router.config = replace(router.config, credentials=certificate)
            router.server = RouterServer(router.config, ProcessSupervisor())
            found.append(await stack.enter_async_context(router))
        yield found


async def shared(router: Cluster) -> None:
    """Wait until the router has both workers, and a share of them."""
    await router.until(
        lambda workers: (
            len(workers) == 2
            and all(each["ready"] and each["share"] is not None for each in workers.values())
        )
    )


async def ask(router: Cluster, prompt: tuple[int, ...]) -> None:
    options = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    call = router.generate(prompt, TIMEOUT_S, **options)
    ids = [token for reply in await within(replies_of(call)) for token in reply.token_ids]
    assert ids == expected_tokens(HashModel(), prompt, TOKENS)


def most_at_once(rank: TestWorker) -> list[int]:
    """Return a list of one number: the most requests that the rank has had at a time."""
    begin, most = rank.service._begin, [0]

    def counted(*args: object) -> object:
        request = begin(*args)
        most[0] = max(most[0], rank.service.busy)
        return request

    rank.service._begin = counted
    return most


async def test_a_flood_through_one_router_starves_no_other_and_fills_no_worker(
    tmp_path: Path,
) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with routers_of(tmp_path) as routers:
        addresses = tuple(router.started.internal_address for router in routers)
        options: dict[str, Any] = {"worker": {"routers": addresses}}
        prefill = prefill_worker(**options)
        rank = decode_worker(max_running=PLACES, **options)
        async with running(prefill, rank):
            most = most_at_once(rank)
            for router in routers:
                await shared(router)
            flood = [
                asyncio.create_task(ask(routers[0], random_prompt(rng, 5, 40)))
                for _ in range(FLOOD)
            ]
            await until(lambda: rank.service.busy >= PLACES)

            async def quiet(router: Cluster) -> None:
                await asyncio.gather(*(ask(router, random_prompt(rng, 5, 40)) for _ in range(5)))

            await asyncio.gather(*map(quiet, routers[1:]))
            assert not all(each.done() for each in flood), "they waited for the flood's end"
            await asyncio.gather(*flood)
            for worker in (rank, prefill):
                await worker.clean()
    assert PLACES < most[0] <= PLACES + AHEAD + ROUTERS - 1
