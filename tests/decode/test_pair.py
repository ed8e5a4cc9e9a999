"""A prefill worker and a decode rank say what one engine alone would have said."""

import asyncio
import random
from dataclasses import replace

import pytest
from engine.engines import greedy, make_engine, random_prompt
from engine.hash_model import EOS, HashModel, expected_tokens
from transfer.sizes import bytes_needed
from worker.cluster import decode_worker, prefill_worker, running, session

from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2
from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.handoff import HandoffState
from baton.transfer.memory.segments import Kind

S = HandoffState


async def test_greedy_tokens_are_those_of_one_engine(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    prompts = [random_prompt(seeded, 1, 70) for _ in range(12)]
    async with running(prefill, decode), session(decode) as router:
        started = [await router.start(p, greedy(9), [prefill]) for p in prompts]
        for prompt, (_, answer) in zip(prompts, started, strict=True):
            finished = await answer.end()
            assert answer.token_ids == expected_tokens(HashModel(), prompt, 9)
            assert finished.reason == common_pb2.LENGTH
            assert finished.usage.prompt_tokens == len(prompt)
            assert finished.usage.completion_tokens == 9
        await decode.clean()
        await prefill.clean()
    ways = [S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE]
    assert decode.been_in(S.ACTIVE) == len(prompts)
    for worker in (prefill, decode):
        for state in ways:
            assert worker.been_in(state) == len(prompts)


@pytest.mark.parametrize("here", [False, True])
async def test_sampled_tokens_and_logprobs_are_those_of_one_engine(
    seeded: random.Random, here: bool
) -> None:
    prefill, decode, alone = prefill_worker(), decode_worker(), make_engine()
    prompts = [random_prompt(seeded, 3, 50) for _ in range(6)]
    samplings = [
        SamplingParams(
            temperature=0.8,
            top_k=20,
            top_p=0.95,
            repetition_penalty=1.2,
            presence_penalty=0.3,
            frequency_penalty=0.1,
            seed=seeded.randrange(2**64),
            max_tokens=10,
            min_tokens=3,
            logprobs=2,
            prompt_logprobs_start=1,
            prompt_logprobs=1,
            logprob_token_ids=(5, 0),
        )
        for _ in prompts
    ]
    async with running(prefill, decode), session(decode) as router:
        started = [
            await router.start(p, s, [prefill], prefill_here=here)
            for p, s in zip(prompts, samplings, strict=True)
        ]
        answers = [answer for _, answer in started]
        for answer in answers:
            await answer.end()
        await decode.clean()
    for answer, output in zip(answers, alone.generate(prompts, samplings), strict=True):
        assert answer.token_ids == list(output.token_ids)
        assert [e.token_id for e in answer.logprobs] == answer.token_ids
        assert [list(e.top_ids) for e in answer.logprobs] == [
            list(e.top_ids) for e in output.logprobs
        ]
        assert [e.logprob for e in answer.logprobs] == pytest.approx(
            [e.logprob for e in output.logprobs], abs=1e-5
        )
        for entries, wanted in (
            (answer.logprobs, output.logprobs),
            (answer.prompt_logprobs, output.prompt_logprobs),
        ):
            for got, expected in zip(entries, wanted, strict=True):
                others = list(expected.asked_logprobs)
                assert list(got.asked_logprobs) == pytest.approx(others, abs=1e-5)
        assert [e.token_id for e in answer.prompt_logprobs] == [
            e.token_id for e in output.prompt_logprobs
        ]
        assert answer.finished is not None
        assert answer.finished.usage.completion_tokens == output.finished.usage.completion_tokens


async def test_bytes_moved_are_what_is_needed(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    moved = {Kind.STATE: 0, Kind.KV: 0}
    async with running(prefill, decode), session(decode) as router:
        prompt = random_prompt(seeded, 30, 60)
        _, answer = await router.start(prompt, greedy(3), [prefill])
        await answer.end()
        await prefill.clean()
        for kind in moved:
            sent, received = (
                worker.context.metrics.registry.get_sample_value(
                    f"baton_worker_{direction}_bytes_total",
                    {
                        "worker": worker.context.worker_id,
                        "role": worker.context.config.role.value,
                        "kind": kind.name.lower(),
                    },
                )
                for worker, direction in ((prefill, "sent"), (decode, "received"))
            )
            assert sent == received
            moved[kind] = int(sent)
    plan = prefill.engine.plan
    needed = bytes_needed(plan.slot_layout, plan.page_layout, len(prompt))
    assert moved[Kind.STATE] == plan.slot_layout.state_bytes + HEADER_BYTES
    headers = sum(moved.values()) - needed
    assert headers >= 2 * HEADER_BYTES and headers % HEADER_BYTES == 0


async def test_what_ends_at_its_first_token_takes_no_ticket(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    prompt = random_prompt(seeded, 5, 30)
    first = expected_tokens(HashModel(), prompt, 1)
    async with running(prefill, decode), session(decode) as router:
        _, none = await router.start(prompt, greedy(0), [prefill])
        _, one = await router.start(prompt, greedy(1), [prefill])
        assert (await none.end()).reason == common_pb2.LENGTH
        assert none.token_ids == []
        assert (await one.end()).reason == common_pb2.LENGTH
        assert one.token_ids == first
        await decode.clean()
        await prefill.clean()
    assert not decode.been_in(S.RESERVED)
    assert not prefill.been_in(S.RESERVED)


async def test_a_stop_at_the_first_token_gives_the_ticket_back(seeded: random.Random) -> None:
    """It was asked for when the request was scheduled: nobody knew."""
    prefill, decode = prefill_worker(), decode_worker()
    prompt = random_prompt(seeded, 5, 30)
    (first,) = expected_tokens(HashModel(), prompt, 1)
    sampling = replace(greedy(8), stop_token_ids=(first,))
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(prompt, sampling, [prefill])
        finished = await answer.end()
        assert (finished.reason, finished.stop_token_id) == (common_pb2.STOP, first)
        assert answer.token_ids == [first]
        await decode.clean()
        await prefill.clean()


async def test_eos_ends_the_answer_on_the_rank(seeded: random.Random) -> None:
    model = HashModel()
    prefill, decode = prefill_worker(), decode_worker()
    while True:
        prompt = random_prompt(seeded, 5, 30)
        wanted = expected_tokens(model, prompt, 60)
        if EOS in wanted[1:]:
            break
    wanted = wanted[: wanted.index(EOS) + 1]
    sampling = SamplingParams(temperature=0.0, max_tokens=60)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(prompt, sampling, [prefill])
        finished = await answer.end()
        assert (finished.reason, finished.stop_token_id) == (common_pb2.STOP, EOS)
        assert answer.token_ids == wanted
        await decode.clean()


@pytest.mark.parametrize("given", [1, 2, 7])
@pytest.mark.parametrize("here", [False, True])
async def test_a_request_that_was_lost_elsewhere_goes_on_where_it_was(
    seeded: random.Random, given: int, here: bool
) -> None:
    prefill, decode, alone = prefill_worker(), decode_worker(), make_engine()
    prompt = random_prompt(seeded, 5, 40)
    sampling = SamplingParams(
        temperature=1.0, seed=seeded.randrange(2**64), max_tokens=12, ignore_eos=True,
        frequency_penalty=0.5,
    )  # fmt: skip
    (whole,) = alone.generate([prompt], sampling)
    async with running(prefill, decode), session(decode) as router:
        outputs = whole.token_ids[:given]
        _, answer = await router.start(prompt, sampling, [prefill], outputs, prefill_here=here)
        finished = await answer.end()
        assert answer.token_ids == list(whole.token_ids[given:])
        assert finished.usage.prompt_tokens == len(prompt)
        assert finished.usage.completion_tokens == 12
        await decode.clean()
        await prefill.clean()


async def test_timings_and_metrics_say_where_the_time_went(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded, 40, 60), greedy(4), [prefill])
        timings = (await answer.end()).timings
        assert timings.prefill_us > 0
        assert timings.transfer_us > 0
        assert timings.first_decode_step_us > 0
        await decode.clean()
        for worker, names in (
            (prefill, ("prefill_queue", "prefill")),
            (decode, ("transfer", "handoff_writing", "decode_wait", "first_decode_step")),
        ):
            labels = {"worker": worker.context.worker_id, "role": worker.context.config.role.value}
            registry = worker.context.metrics.registry
            for name in names:
                assert registry.get_sample_value(f"baton_worker_{name}_seconds_count", labels) == 1
            assert registry.get_sample_value("baton_worker_step_seconds_count", labels) >= 3


async def test_a_large_request_that_does_not_fit_does_not_stop_small_ones(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker(pages=20)
    async with running(prefill, decode), session(decode) as router:
        hog = await decode.context.port.call(lambda engine: engine.reserve("hog", 80))
        assert hog is not None
        _, large = await router.start(random_prompt(seeded, 100, 100), greedy(2), [prefill])
        await decode.reached(S.SCHEDULED, 1)
        _, small = await router.start(random_prompt(seeded, 5, 5), greedy(2), [prefill])
        assert (await small.end()).reason == common_pb2.LENGTH
        assert decode.been_in(S.RESERVED) == 1
        await decode.context.port.call(lambda engine: engine.reservations.abandon(hog))
        assert (await large.end()).reason == common_pb2.LENGTH
        await decode.clean()
        await prefill.clean()


async def test_a_request_that_could_never_fit_is_an_error_that_says_so(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker(pages=20)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded, 200, 200), greedy(2), [prefill])
        finished = await answer.end()
        assert finished.reason == common_pb2.ERROR
        assert finished.error.code == common_pb2.TOO_LARGE
        assert finished.error.origin == "d0"
        await decode.clean()
        await prefill.clean()


async def test_tokens_of_one_step_travel_in_one_message(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        decode.model.gate.allow(0)
        started = []
        for _ in range(3):
            started.append(await router.start(random_prompt(seeded, 5, 20), greedy(90), [prefill]))
            await decode.blocked()
        await decode.step_until(lambda: decode.been_in(S.ACTIVE) == 3)
        await asyncio.gather(*(answer.end() for _, answer in started))
        assert max(router.sizes) == 3
        await decode.clean()
