"""Prompts that a decode rank computes itself."""

import random
from dataclasses import replace

import pytest
from engine.engines import PAGE, greedy, random_prompt
from engine.hash_model import VOCAB, HashModel, expected_tokens
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.engine.engine import Engine
from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState


async def test_a_second_prompt_resumes_from_what_the_first_left_on_the_rank(
    seeded: random.Random,
) -> None:
    """It finds the junction: on its own the rank keeps the states after 48 and 96 tokens."""
    prefill, decode = prefill_worker(), decode_worker(chunk=128, snapshots_per_prefill=2)
    first = random_prompt(seeded, 100, 111)
    second = (*first[:70], (first[70] + 1) % VOCAB)
    async with running(prefill, decode), session(decode) as router:
        for prompt, cached, junctions in ((first, 0, (64,)), (second, 64, ())):
            _, answer = await router.start(
                prompt, greedy(9), [prefill], junctions=junctions, prefill_here=True
            )
            finished = await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
            assert finished.usage.cached_tokens == cached
            assert finished.timings.prefill_us > 0 and not finished.timings.transfer_us
        await decode.clean()
    assert not prefill.moves and not decode.moves, "nothing was handed over"


@pytest.mark.parametrize("running_already", [True, False])
async def test_a_cancel_frees_the_rank(seeded: random.Random, running_already: bool) -> None:
    decode = decode_worker()
    async with running(decode), session(decode) as router:
        decode.model.gate.allow(1 if running_already else 0)
        name, answer = await router.start(
            random_prompt(seeded, 40, 60), greedy(20), [], prefill_here=True
        )
        await decode.blocked()
        await router.cancel(name)
        decode.model.gate.open()
        assert (await answer.end()).reason == common_pb2.ABORT
        await decode.clean()


async def test_a_prompt_that_was_read_here_is_preempted_and_resumed(seeded: random.Random) -> None:
    decode = decode_worker(pages=24, max_running=2)
    prompts = [tuple(seeded.randrange(VOCAB) for _ in range(4 * PAGE)) for _ in range(3)]
    sampling = replace(greedy(13 * PAGE), prompt_logprobs_start=0)
    async with running(decode), session(decode) as router:
        answers = [
            (await router.start(prompt, sampling, [], prefill_here=True))[1] for prompt in prompts
        ]
        for prompt, answer in zip(prompts, answers, strict=True):
            await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 13 * PAGE)
            assert [entry.token_id for entry in answer.prompt_logprobs] == list(prompt)
        counters = await decode.context.port.call(lambda engine: engine.counters)
        assert counters.preemptions
        assert not await decode.context.port.call(Engine.audit)


async def test_a_prompt_that_no_engine_could_hold_is_an_error_that_says_so(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(pages=10), decode_worker(pages=10)
    prompt = random_prompt(seeded, 12 * PAGE, 12 * PAGE)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(prompt, greedy(9), [prefill], prefill_here=True)
        finished = await answer.end()
        assert finished.error.code == common_pb2.TOO_LARGE
        await decode.clean()
        await prefill.clean()
    assert decode.been_in(HandoffState.ACTIVE) == 0
