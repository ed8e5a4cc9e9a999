"""Recalls of requests in every state of their hand-off, and in the engine of their rank."""

import asyncio
import random
from collections.abc import Callable

import pytest
from decode.test_faults import STATES, TOKENS, still_serves, stuck
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from worker.cluster import TestWorker, decode_worker, prefill_worker, running, session

from baton.decode.request_phase import Phase
from baton.proto import common_pb2

LONG = 400  # tokens of the answer that keeps a rank busy
MOST_STEPS = 190  # of two waits together fewer than LONG


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("state", STATES)
async def test_a_rank_gives_back_what_has_no_chunk_and_no_ticket(
    state: str, computed: bool, seeded: random.Random
) -> None:
    async with stuck(state, seeded) as case:
        returned = await case.router.recall(case.request_id, computed=computed)
        assert returned == (state == "queued" or (state == "held" and computed))
        wanted, given = expected_tokens(HashModel(), case.prompt, TOKENS), case.answer.token_ids
        assert given == wanted[: len(given)]
        await case.release()
        if returned:
            _, rest = await case.router.start(
                case.prompt, greedy(TOKENS), [case.spare], tuple(given), again=case.request_id
            )
            assert (await rest.end()).reason == common_pb2.LENGTH
            assert given + rest.token_ids == wanted
            assert case.answer.finished is None
        else:
            assert (await case.answer.end()).reason == common_pb2.LENGTH
            assert case.answer.token_ids == wanted
        await still_serves(case, seeded)
        await case.clean()


@pytest.mark.parametrize("computed", [False, True])
async def test_what_waits_for_a_place_in_a_step_is_given_back_with_its_first_token(
    computed: bool, seeded: random.Random
) -> None:
    prefill, decode = prefill_worker(), decode_worker(max_running=1)
    async with running(prefill, decode), session(decode) as router:
        first, second = (random_prompt(seeded, 20, 40) for _ in range(2))
        decode.model.gate.allow(3)
        _, runs = await router.start(first, greedy(LONG), [prefill])
        await runs.until(lambda answer: len(answer.token_ids) > 1)
        await decode.blocked()
        name, waits = await router.start(second, greedy(9), [prefill])
        await waits.until(lambda answer: answer.token_ids)
        await step_until(decode, lambda: Phase.DECODING in phases_of(decode, name))
        recall = asyncio.ensure_future(router.recall(name, computed=computed))
        if computed:
            await step_until(decode, recall.done)
        returned = await recall
        decode.model.gate.open()
        assert returned == computed
        rest = waits
        given: tuple[int, ...] = ()
        if returned:
            given = tuple(waits.token_ids)
            assert len(given) == 1 and waits.finished is None
            _, rest = await router.start(second, greedy(9), [prefill], given, again=name)
        await rest.end()
        assert [*given, *rest.token_ids] == expected_tokens(HashModel(), second, 9)
        await runs.end()
        assert runs.token_ids == expected_tokens(HashModel(), first, LONG)
        await decode.clean()
        await prefill.clean()


@pytest.mark.parametrize("computed", [False, True])
async def test_a_prompt_that_its_rank_has_not_begun_is_given_back_for_a_prefill_worker(
    computed: bool, seeded: random.Random
) -> None:
    prefill, decode = prefill_worker(), decode_worker(max_running=1)
    async with running(prefill, decode), session(decode) as router:
        first, second = (random_prompt(seeded, 20, 40) for _ in range(2))
        decode.model.gate.allow(3)
        _, runs = await router.start(first, greedy(LONG), [prefill])
        await runs.until(lambda answer: len(answer.token_ids) > 1)
        await decode.blocked()
        name, waits = await router.start(second, greedy(9), [], prefill_here=True)
        await step_until(decode, lambda: Phase.DECODING in phases_of(decode, name))
        recall = asyncio.ensure_future(router.recall(name, computed=computed))
        if computed:
            await step_until(decode, recall.done)
        assert await recall == computed
        decode.model.gate.open()
        rest = waits
        if computed:
            assert not waits.token_ids and waits.finished is None
            _, rest = await router.start(second, greedy(9), [prefill], again=name)
        await rest.end()
        assert rest.token_ids == expected_tokens(HashModel(), second, 9)
        await runs.end()
        assert runs.token_ids == expected_tokens(HashModel(), first, LONG)
        await decode.clean()
        await prefill.clean()


async def test_a_prompt_that_a_prefill_worker_has_ahead_is_given_back_for_its_rank(
    seeded: random.Random,
) -> None:
    async with stuck("queued", seeded) as case:
        assert await case.router.recall(case.request_id, computed=False)
        await case.release()
        _, rest = await case.router.start(
            case.prompt, greedy(TOKENS), [], again=case.request_id, prefill_here=True
        )
        await rest.end()
        assert rest.token_ids == expected_tokens(HashModel(), case.prompt, TOKENS)
        await still_serves(case, seeded)
        await case.clean()


def phases_of(decode: TestWorker, name: str) -> list[Phase]:
    return [each.phase for each in decode.service._requests if each.request_id == name]


async def step_until(decode: TestWorker, true: Callable[[], bool]) -> None:
    """Step until `true`."""
    for _ in range(MOST_STEPS):
        if true():
            return
        await step(decode)
    raise AssertionError(f"not within {MOST_STEPS} steps: {len(decode.service._requests)} requests")


async def step(decode: TestWorker) -> None:
    """Let one forward through; between two of them the engine does what it was asked to. Not
    sooner than others could ask: the first request must outlast them."""
    await asyncio.sleep(0.05)  # others come to ask
    decode.model.gate.waiting = False
    decode.model.gate.allow(1)
    await decode.blocked()
