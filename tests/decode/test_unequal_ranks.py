"""Hand-offs between prefill and decode workers whose engines have other numbers of ranks, each a
process: the tokens are those of transformers, whichever way the state goes."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from decode.test_state_returner import fetches, labels
from engine.engines import greedy
from kit.polling import until
from oracle.reference import Oracle
from oracle.specs import SPECS
from worker.cluster import (
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)

from baton.engine.engine import Engine
from baton.engine.forward import runner
from baton.engine.settings.config import EngineConfig
from baton.engine.step.layer_progress import LayerProgress
from baton.transfer.handoff import HandoffState
from baton.transfer.memory.segments import Kind
from baton.worker.config import StateReturn
from baton.worker.prefix_fetcher import Outcome

NAME = "granite_moe_nope"  # two KV heads and groups: of four ranks, two keep each of them
STEPS = 24
PAIRS = ((1, 2), (2, 1), (2, 4))
CHANNELS = ("grpc", "nixl")

MakeEngine = Callable[[str, int], Engine]


@pytest.fixture(scope="module")
def folder(oracle: Oracle) -> Path:
    return oracle.checkpoint(NAME)


@pytest.fixture(scope="module")
def engine_of(folder: Path) -> Iterator[MakeEngine]:
    """Engines by role and number of ranks, poisoned, each made at its first use."""
    made: dict[tuple[str, int], Engine] = {}

    def engine(role: str, tp: int) -> Engine:
        if (role, tp) not in made:
            made[role, tp] = loaded = Engine.load(config(folder, tp))
            poison(loaded)
        return made[role, tp]

    yield engine
    for each in made.values():
        each.close()


def config(folder: Path, tp: int) -> EngineConfig:
    return EngineConfig(
        model=folder,
        page_size=16,
        max_running=8,
        chunked_prefill_size=32,
        mamba_track_interval=16,
        memory_bytes=1 << 28,
        cached_snapshots=6,
        snapshots_per_prefill=4,
        max_model_len=512,
        layer_group_bytes=1,  # each layer is sent by itself
        tickets=4,
        tp=tp,
    )


def poison(engine: Engine) -> None:
    pools = [engine.states.storage, engine.pages.storage]
    if engine.followers is not None and engine.followers.storages is not None:
        pools = [pool for rank in engine.followers.storages.ranks for pool in rank]
    for pool in pools:
        pool.random_(0, 256)


@asynccontextmanager
async def joined(prefill: TestWorker, decode: TestWorker) -> AsyncIterator[RouterClient]:
    """Both serve inside. Afterwards their engines are free for other workers."""
    async with running(prefill, decode), session(decode) as router:
        yield router
    for worker in (prefill, decode):
        assert worker.engine.flush_cache()


def prompt(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(3, SPECS[NAME].config["vocab_size"]) for _ in range(length))


def moved(worker: TestWorker, direction: str, kind: Kind) -> float:
    return sample(worker, f"{direction}_bytes_total", kind=kind.name.lower()) or 0


def sample(worker: TestWorker, name: str, **about: str) -> float | None:
    registry = worker.context.metrics.registry
    found: float | None = registry.get_sample_value(f"baton_worker_{name}", labels(worker) | about)
    return found


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("p", "d"), PAIRS, ids=str)
async def test_turns_of_conversations_go_from_p_ranks_to_d_and_back(
    oracle: Oracle,
    engine_of: MakeEngine,
    folder: Path,
    p: int,
    d: int,
    channel: str,
    seeded: random.Random,
) -> None:
    """Beside one another; the second turns find KV on the rank, and the state that the first left
    there comes back to the prefill worker."""
    prefill, decode = engine_of("prefill", p), engine_of("decode", d)
    await take_turns(oracle, folder, prefill, decode, channel, seeded)


async def take_turns(
    oracle: Oracle,
    reference: Path,
    of_prefill: Engine,
    of_decode: Engine,
    channel: str,
    rng: random.Random,
) -> None:
    """Ask, and ask again with the answers, between workers with these engines.

    reference: the checkpoint of NAME that transformers reads
    """
    options: dict[str, Any] = {"channel": channel, "worker": {"state_return": StateReturn.DEMAND}}
    prefill = prefill_worker(loaded=of_prefill, **options)
    decode = decode_worker(loaded=of_decode, **options)
    d = of_decode.config.tp
    hits = of_decode.counters.transfer_hit_tokens
    firsts = [prompt(rng, length) for length in (3, 53, 101)]
    async with joined(prefill, decode) as router:
        started = [await router.start(each, greedy(STEPS), [prefill]) for each in firsts]
        seconds = []
        for first, (_, answer) in zip(firsts, started, strict=True):
            await answer.end()
            seconds.append((*first, *answer.token_ids, *prompt(rng, 20)))
            oracle.assert_all_greedy(reference, [first], [answer.token_ids], STEPS)
        await until(lambda: decode.been_in(HandoffState.ACTIVE) == len(firsts))
        for second in seconds:
            _, answer = await router.start(second, greedy(STEPS), [prefill])
            await answer.end()
            oracle.assert_all_greedy(reference, [second], [answer.token_ids], STEPS)
        for worker in (prefill, decode):
            await worker.clean()
        assert decode.been_in(HandoffState.ACTIVE) == len(firsts) + len(seconds)
        assert fetches(prefill, Outcome.FETCHED) >= 1
        assert of_decode.counters.transfer_hit_tokens > hits
        for rank in range(d) if d > 1 else ():
            resident = sample(decode, "rank_memory_used_bytes", rank=str(rank))
            assert resident is not None and resident > 1 << 20
            used = sample(decode, "rank_cpu_seconds", rank=str(rank))
            assert used is not None and used > 0
        check_bytes(prefill, decode, d, len(firsts) + len(seconds))


def check_bytes(prefill: TestWorker, decode: TestWorker, d: int, states: int) -> None:
    slots = prefill.context.memory.slots
    needed = states * sum(slots.shard(rank, d).state_bytes for rank in range(d))
    sent = moved(prefill, "sent", Kind.STATE)
    assert 0 < sent == moved(decode, "received", Kind.STATE)
    heads = states * 2 * len(SPECS[NAME].config["layer_types"]) * 100  # of the messages
    assert sent <= 1.02 * needed + heads


@pytest.mark.parametrize("channel", CHANNELS)
async def test_hand_offs_that_are_cancelled_leave_nothing_behind(
    engine_of: MakeEngine, channel: str, seeded: random.Random
) -> None:
    """Whatever has been written by then: over NIXL, the memory is in quarantine until it drains."""
    prefill = prefill_worker(loaded=engine_of("prefill", 2), channel=channel)
    decode = decode_worker(loaded=engine_of("decode", 4), channel=channel)
    async with joined(prefill, decode) as router:
        for number in range(1, 7):
            request_id, answer = await router.start(prompt(seeded, 200), greedy(STEPS), [prefill])
            await decode.reached(HandoffState.RESERVED, number)
            await asyncio.sleep(seeded.random() * 0.1)  # cancelled at any point
            await router.cancel(request_id)
            await answer.end()
        for worker in (prefill, decode):
            await worker.clean()


async def test_the_state_of_a_prompt_leaves_before_its_last_layer(
    engine_of: MakeEngine, seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks write a layer's state when they come to it: nothing leaves before all have."""
    prefill = prefill_worker(loaded=engine_of("prefill", 2))
    decode = decode_worker(loaded=engine_of("decode", 1))
    told: list[tuple[int, int, bool]] = []
    waited: list[bool] = []  # for the other ranks

    def progress(*args: Any, several_ranks: bool, **more: Any) -> LayerProgress:
        waited.append(several_ranks)
        return LayerProgress(*args, several_ranks=several_ranks, **more)

    monkeypatch.setattr(runner, "LayerProgress", progress)
    async with joined(prefill, decode) as router:
        service = prefill.service
        heard = service._on_layers

        def on_layers(computed: Any, at_s: float) -> None:
            told.extend((one.recurrent, one.attention, one.last) for one in computed)
            heard(computed, at_s)

        prefill.context.port.listen(on_layers)
        _, answer = await router.start(prompt(seeded, 40), greedy(3), [prefill])
        await answer.end()
        await asyncio.gather(prefill.clean(), decode.clean())
    assert waited == [True]
    assert told == [(1, 0, False), (1, 1, False), (2, 1, False), (2, 1, True)]
