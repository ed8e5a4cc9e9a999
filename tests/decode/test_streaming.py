"""State leaves as it is computed: what has arrived at the rank while the prefill's forward stands
still at a chosen place. The order of things, never their time."""

import random
from typing import Any

from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, LayeredHashModel, expected_tokens
from kit.polling import until
from worker.cluster import (
    Gate,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)

from baton.core.sampling_params import SamplingParams
from baton.transfer.handoff import HandoffState
from baton.transfer.tickets import Received

CHUNK = 16
LAYERS = 3


class SteppedModel(LayeredHashModel):
    """Waits before each forward, and before each layer but the first."""

    def __init__(self) -> None:
        super().__init__(LAYERS)
        self.gate, self.layer_gate = Gate(), Gate()

    def forward(self, *args: object) -> object:  # type: ignore[override]
        self.gate.pass_through()
        return super().forward(*args)  # type: ignore[arg-type]

    def between(self, layer: int) -> None:
        self.layer_gate.pass_through()


def stepped_prefill(**more: Any) -> TestWorker:
    options: dict[str, Any] = {"chunk": CHUNK, "layer_group_bytes": 1}
    return prefill_worker(model=SteppedModel(), **(options | more))


def layer_gate(prefill: TestWorker) -> Gate:
    assert isinstance(prefill.model, SteppedModel)
    return prefill.model.layer_gate


async def until_arrived(decode: TestWorker, kv: int, state: int) -> None:
    """Wait until these bytes of pages and of state are at the rank."""
    await until(lambda: (arrived(decode).bytes_kv, arrived(decode).bytes_state) == (kv, state))


def layered_decode(name: str = "d0") -> TestWorker:
    return decode_worker(name, model=SteppedModel())


def arrived(rank: TestWorker) -> Received:
    """Under the one ticket that is open."""
    entries = list(rank.service._rank.tickets._entries.values())
    return entries[0].received if entries else Received(0, 0, 0)


def bytes_of(received: Received) -> tuple[int, int]:
    return received.bytes_state, received.bytes_kv


async def standing(gate: Gate) -> None:
    await until(lambda: gate.waiting)


async def test_a_layers_state_arrives_while_the_next_layer_computes(seeded: random.Random) -> None:
    prefill, decode = stepped_prefill(), layered_decode()
    slots, pages = prefill.engine.plan.slot_layout, prefill.engine.plan.page_layout
    prompt = random_prompt(seeded, 40, 60)
    last = (len(prompt) - 1) % CHUNK + 1
    layers = layer_gate(prefill)
    async with running(prefill, decode), session(decode) as router:
        layers.allow((LAYERS - 1) * ((len(prompt) - last) // CHUNK))  # up to the last chunk
        _, answer = await router.start(prompt, greedy(9), [prefill])
        for done in range(1, LAYERS):
            await standing(layers)
            state = slots.bytes_before(done)
            kv = (len(prompt) - last) * pages.token_bytes + last * pages.bytes_of((0, done))
            await until_arrived(decode, kv, state)
            assert not answer.token_ids, "nothing is sampled yet"
            layers.waiting = False
            layers.allow(1)
        layers.open()
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        await decode.clean()
        await prefill.clean()


async def test_kv_of_a_chunk_arrives_while_the_next_chunk_computes(seeded: random.Random) -> None:
    prefill, decode = stepped_prefill(), layered_decode()
    pages = prefill.engine.plan.page_layout
    prompt = random_prompt(seeded, 3 * CHUNK + 1, 4 * CHUNK)
    gate = prefill.model.gate
    async with running(prefill, decode), session(decode) as router:
        gate.allow(1)
        _, answer = await router.start(prompt, greedy(9), [prefill])
        for chunks in (1, 2, 3):
            await standing(gate)
            await until_arrived(decode, chunks * CHUNK * pages.token_bytes, 0)
            gate.waiting = False
            gate.allow(1)
        gate.open()
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        await decode.clean()


async def test_kv_that_the_prefill_has_cached_leaves_before_its_first_forward(
    seeded: random.Random,
) -> None:
    prefill, first, second = stepped_prefill(), layered_decode(), layered_decode("d1")
    prompt = random_prompt(seeded, 4 * CHUNK + 3, 4 * CHUNK + 9)
    token_bytes = prefill.engine.plan.page_layout.token_bytes
    async with running(prefill, first, second), session(first) as one, session(second) as two:
        _, answer = await one.start(prompt, greedy(9), [prefill])
        await answer.end()
        await prefill.clean()
        prefill.model.gate.allow(0)
        _, answer = await two.start(prompt, greedy(9), [prefill])
        await until(lambda: arrived(second).bytes_kv == 4 * CHUNK * token_bytes)
        prefill.model.gate.open()
        finished = await answer.end()
        assert finished.usage.cached_tokens == 4 * CHUNK
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        await second.clean()


async def test_what_ends_at_its_first_token_ends_though_its_state_had_begun_to_leave(
    seeded: random.Random,
) -> None:
    prefill, decode = stepped_prefill(), layered_decode()
    prompt = random_prompt(seeded, 5, 15)
    (first,) = expected_tokens(HashModel(), prompt, 1)
    layers = layer_gate(prefill)
    async with running(prefill, decode), session(decode) as router:
        layers.allow(1)
        stops = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(first,))
        _, answer = await router.start(prompt, stops, [prefill])
        await until(lambda: arrived(decode).bytes_state > 0)
        layers.open()
        await answer.end()
        assert answer.token_ids == [first]
        await decode.clean()
        await prefill.clean()
    assert decode.been_in(HandoffState.WRITING) and not decode.been_in(HandoffState.ACTIVE)


async def test_the_time_from_the_last_layer_to_the_first_decode_step_is_reported(
    seeded: random.Random,
) -> None:
    prefill, decode = stepped_prefill(), layered_decode()
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded, 5, 60), greedy(9), [prefill])
        timings = (await answer.end()).timings
        assert timings.prefill_to_decode_us >= timings.decode_wait_us > 0
        labels = {"worker": "d0", "role": "decode"}
        registry = decode.context.metrics.registry
        assert (
            registry.get_sample_value("baton_worker_prefill_to_decode_seconds_count", labels) == 1
        )
        await decode.clean()
