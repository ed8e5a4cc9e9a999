"""Tests that the part of a prompt's KV that a rank already has does not travel again."""

import random

import pytest
from engine.engines import PAGE, greedy, random_prompt
from engine.hash_model import VOCAB, HashModel, expected_tokens
from transfer.sizes import bytes_needed
from worker.cluster import TestWorker, decode_worker, prefill_worker, running, session

from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.memory.segments import Kind


def _received(worker: TestWorker, kind: Kind) -> int:
    labels = {
        "worker": worker.context.worker_id,
        "role": worker.context.config.role.value,
        "kind": kind.name.lower(),
    }
    registry = worker.context.metrics.registry
    return int(registry.get_sample_value("baton_worker_received_bytes_total", labels) or 0)


@pytest.mark.parametrize("hit_at_prefill", [True, False])
async def test_a_second_prompt_moves_its_state_and_the_kv_that_is_new(
    seeded: random.Random, hit_at_prefill: bool
) -> None:
    """The transfer shrinks whether the prefill worker hits too, or is another that has never seen
    the prompt."""
    prefill, other, decode = prefill_worker(), prefill_worker("p1"), decode_worker()
    first = random_prompt(seeded, 60, 70)
    shared = seeded.randrange(3 * PAGE, 60)
    second = (*first[:shared], (first[shared] + 1) % VOCAB, *random_prompt(seeded, 10, 30))
    async with running(prefill, other, decode), session(decode) as router:
        _, answer = await router.start(first, greedy(20), [prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), first, 20)
        before = {kind: _received(decode, kind) for kind in Kind}
        _, answer = await router.start(second, greedy(9), [prefill if hit_at_prefill else other])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        await decode.clean()
        await prefill.clean()
        moved = {kind: _received(decode, kind) - before[kind] for kind in Kind}
    plan = decode.engine.plan
    hit = shared // PAGE * PAGE
    needed = bytes_needed(plan.slot_layout, plan.page_layout, len(second), hit)
    assert moved[Kind.STATE] == plan.slot_layout.state_bytes + HEADER_BYTES, "always whole"
    headers = sum(moved.values()) - needed
    assert 2 * HEADER_BYTES <= headers <= 8 * HEADER_BYTES
    assert decode.engine.counters.transfer_hit_tokens == hit


async def test_a_second_turn_moves_neither_the_first_prompt_nor_its_answer(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    first = random_prompt(seeded, 30, 50)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(first, greedy(30), [prefill])
        await answer.end()
        second = (*first, *answer.token_ids, *random_prompt(seeded, 3, 9))
        _, answer = await router.start(second, greedy(9), [prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), second, 9)
        await decode.clean()
    # The answer's last token was sampled, but never computed.
    assert decode.engine.counters.transfer_hit_tokens == (len(first) + 29) // PAGE * PAGE


async def test_a_prompt_that_the_rank_has_whole_moves_its_state_alone(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    prompt = random_prompt(seeded, 6 * PAGE, 6 * PAGE)
    async with running(prefill, decode), session(decode) as router:
        answers = [(await router.start(prompt, greedy(9), [prefill]))[1]]
        await answers[0].end()
        before = _received(decode, Kind.KV)
        answers += [(await router.start(prompt, greedy(9), [prefill]))[1] for _ in range(3)]
        for answer in answers:
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
        assert _received(decode, Kind.KV) == before
        await decode.clean()
        await prefill.clean()
