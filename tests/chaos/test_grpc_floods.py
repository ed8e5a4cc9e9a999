"""The latency of gRPC clients beside 2,000 calls of their own address that ask for nothing, at the
router of a real cluster. Needs a machine that is quiet otherwise."""

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from api.attacked_grpc import GENERATE, OWN
from api.test_grpc_floods import FLOOD, LIMITS, Metadata, flooding, with_key
from chaos.served import DEADLINE_S, serving
from deploy.tiny_worker import TINY

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.bench.checkpoints import write_checkpoint
from baton.proto import inference_pb2, inference_pb2_grpc
from baton.proto.common_pb2 import SamplingParams
from baton.proto.inference_pb2 import TokenIds

pytestmark = pytest.mark.chaos

CLIENTS = 16
REQUESTS = 40  # of each client
MOST_TIMES = 1.5
KINDS = ("watch", "reflection", GENERATE)
REFUSED = 'baton_router_refusals_total{reason="streams"}'


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


async def median_s(channels: list[grpc.aio.Channel], metadata: Metadata) -> float:
    """Return the median time of an answer of two tokens, while all clients ask one after another.

    A request that is refused fails.
    """
    took: list[float] = []

    async def ask(channel: grpc.aio.Channel) -> None:
        stub = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(
            token_ids=TokenIds(ids=[5, 6, 7, 8]),
            sampling=SamplingParams(max_tokens=2, ignore_eos=True),
        )
        for _ in range(REQUESTS):
            began = time.monotonic()
            async for _ in stub.Generate(request, metadata=metadata, timeout=DEADLINE_S):
                pass
            took.append(time.monotonic() - began)

    await asyncio.gather(*map(ask, channels))
    return statistics.median(took)


async def refused(url: str, metadata: Metadata) -> float:
    async with httpx.AsyncClient(base_url=url, headers=dict(metadata)) as client:
        page = (await client.get("/metrics")).raise_for_status().text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(REFUSED))


@pytest.mark.parametrize("has_keys", [False, True], ids=["open", "keys"])
async def test_clients_are_as_fast_beside_a_flood(
    has_keys: bool, tiny: Path, tmp_path: Path
) -> None:
    options: list[str] = []
    mine: Metadata = ()
    theirs: Metadata = ()
    if has_keys:
        alice, mallory = new_key(), new_key()
        scopes = frozenset({KeyScope.INFER, KeyScope.METRICS})
        named = (("alice", alice), ("mallory", mallory))
        keys = [Key(name, digest_of(text), scopes) for name, text in named]
        write_keys(tmp_path / "keys.json", keys)
        options = ["--api-keys", str(tmp_path / "keys.json")]
        mine, theirs = with_key(alice), with_key(mallory)
    found = {}
    with serving(tiny, tmp_path, *options) as served:
        async with AsyncExitStack() as open_:

            async def channel() -> grpc.aio.Channel:
                made = grpc.aio.insecure_channel(served.grpc_address, options=[OWN])
                return await open_.enter_async_context(made)

            clients = [await channel() for _ in range(CLIENTS)]
            attackers = [await channel() for _ in range(8)]
            await median_s(clients, mine)  # the first requests open connections
            for kind in KINDS:
                alone = await median_s(clients, mine)
                before = await refused(served.http_url, mine)
                metadata = () if kind == "watch" else theirs
                flood = [flooding(kind, attackers[i % 8], metadata) for i in range(FLOOD)]
                async with asyncio.timeout(DEADLINE_S):
                    least = before + FLOOD - LIMITS.idle_grpc_streams_of_client
                    while await refused(served.http_url, mine) < least:
                        await asyncio.sleep(0.1)
                beside = await median_s(clients, mine)
                for call in flood:
                    call.cancel()
                found[kind] = beside / alone
                told = f"{alone:.4f} s alone, {beside:.4f} s beside"
                print(f"{kind}: {told}, {found[kind]:.2f} times", flush=True)
    assert max(found.values()) <= MOST_TIMES, found
