"""Tests of attempts that fail or are refused: the next attempt continues from what was sent before,
and a refusal gives its reason."""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
from certificates import credentials_of
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens, hash_config
from grpc import StatusCode, aio
from kit.polling import until
from worker.cluster import (
    DEADLINE_S,
    GatedModel,
    decode_worker,
    prefill_worker,
    running,
    session,
)
from worker.proxy import proxied

from baton.core.sampling_params import SamplingParams
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.proto.version import PROTOCOL_MAJOR
from baton.rpc.channel_options import OPTIONS
from baton.rpc.errors import ERROR_METADATA
from baton.transfer.channels import frames
from baton.transfer.channels.frames import HEADER_BYTES
from baton.transfer.handoff import HandoffState

S = HandoffState
LEASE_MS = 600  # where a test waits for it to end


async def test_a_sampled_first_token_is_kept_by_the_next_attempt(seeded: random.Random) -> None:
    """The token would differ if it were sampled again: the temperature is 1, and the second try has
    another seed."""
    prompt = random_prompt(seeded, 20, 40)
    sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=6, ignore_eos=True)
    prefill, spare, decode = prefill_worker(), prefill_worker("p1"), decode_worker(pages=40)
    async with running(prefill, spare, decode), session(decode) as router:
        hog = await decode.context.port.call(lambda engine: engine.reserve("hog", 312))
        async with proxied(prefill.identity) as (proxy, seen):
            _, answer = await router.start(prompt, sampling, [seen, spare.identity])
            await answer.until(lambda answer: answer.token_ids)
            (first,) = answer.token_ids
            proxy.cut()
            await spare.reached(S.SCHEDULED)
            (request,) = spare.service._handoffs.values()
            assert request._engine.first_token_is_given
            assert request._request.first_token == first
            await decode.context.port.call(lambda engine: engine.reservations.abandon(hog))
            await answer.end()
        assert len(answer.token_ids) == 6
        await decode.clean()
        await spare.clean()


async def test_scores_that_went_out_before_a_loss_do_not_go_out_again(
    seeded: random.Random,
) -> None:
    prompt = random_prompt(seeded, 50, 60)
    sampling = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs_start=0)
    prefill, spare, decode = prefill_worker(), prefill_worker("p1", chunk=32), decode_worker()
    async with running(prefill, spare, decode), session(decode) as router:
        async with proxied(prefill.identity) as (proxy, seen):
            prefill.model.gate.allow(1)
            _, answer = await router.start(prompt, sampling, [seen, spare.identity])
            await answer.until(lambda answer: answer.prompt_logprobs)
            assert len(answer.prompt_logprobs) < len(prompt)
            proxy.cut()
            await answer.end()
        assert [entry.token_id for entry in answer.prompt_logprobs] == list(prompt)
        prefill.model.gate.open()
        for worker in (prefill, spare, decode):
            await worker.clean()


async def test_a_corrupted_payload_is_retried_elsewhere_and_no_token_is_wrong(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts_of = frames.parts_of_segment
    corrupted: list[bool] = []

    def corrupt_once(*args: Any) -> list[bytes]:
        message = b"".join(parts_of(*args))
        if len(message) > HEADER_BYTES + 40 and not corrupted:
            corrupted.append(True)
            at = seeded.randrange(HEADER_BYTES, len(message))
            message = message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]
        return [message]

    monkeypatch.setattr(frames, "parts_of_segment", corrupt_once)
    prompt = random_prompt(seeded, 20, 60)
    prefill, spare, decode = prefill_worker(), prefill_worker("p1"), decode_worker()
    async with running(prefill, spare, decode), session(decode) as router:
        _, answer = await router.start(prompt, greedy(8), [prefill, spare])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 8)
        corrupted.clear()
        fresh = random_prompt(seeded, 20, 60)  # KV that the rank has does not travel again
        _, answer = await router.start(fresh, greedy(8), [prefill])
        finished = await answer.end()
        assert finished.error.code == common_pb2.DATA_LOSS
        assert "are not what was sent" in finished.error.message
        for worker in (prefill, spare, decode):
            await worker.clean()


async def test_workers_that_differ_refuse_each_other_and_name_both_values(
    seeded: random.Random,
) -> None:
    prefill = prefill_worker(model=GatedModel(hash_config(chunk=8)))
    decode = decode_worker()
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded), greedy(3), [prefill])
        error = (await answer.end()).error
        assert error.code == common_pb2.INCOMPATIBLE
        assert error.origin == "p0"
        assert (error.expected, error.actual) == ("chunk_size=8", "chunk_size=16")
        assert "chunk_size: ours 8, theirs 16" in error.message
        await decode.clean()


@pytest.mark.parametrize("wrong", ["major", "fingerprint", "silent"])
async def test_a_stream_that_does_not_begin_right_is_refused(wrong: str) -> None:
    prefill = prefill_worker()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(prefill))
        dialling = credentials_of("decode", "d0").dial_worker(prefill.identity, OPTIONS)
        channel = await stack.enter_async_context(dialling)
        call = handoff_pb2_grpc.HandoffStub(channel).Control()
        hello = common_pb2.Hello()
        hello.CopyFrom(prefill.context.hello)
        hello.worker.worker_id, hello.worker.role = "d0", common_pb2.DECODE
        if wrong == "major":
            hello.protocol_major = PROTOCOL_MAJOR + 1
        else:
            del hello.fingerprint["ssm_dtype"]
        message = handoff_pb2.DecodeMessage(hello=hello)
        if wrong == "silent":
            message = handoff_pb2.DecodeMessage(heartbeat=common_pb2.Heartbeat(sequence=1))
        await call.write(message)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(aio.AioRpcError) as refused:
                await call.read()
        assert refused.value.code() is StatusCode.FAILED_PRECONDITION
        metadata = dict(refused.value.trailing_metadata())
        error = common_pb2.Error.FromString(metadata[ERROR_METADATA])
        if wrong == "silent":
            assert "begins with Hello" in error.message
        else:
            assert error.code == common_pb2.INCOMPATIBLE
            assert error.expected and error.actual
        if wrong == "fingerprint":
            assert error.actual == "ssm_dtype=(absent)"


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        ((1, 2, 3), common_pb2.SamplingParams(top_p=1.0, temperature=-1), "temperature"),
        ((), None, "prompt is empty"),
        ((1, 500), None, "prompt_ids[1] is 500"),
    ],
)
async def test_a_bad_request_is_refused_once_and_the_next_one_works(
    prompt: tuple[int, ...],
    sampling: common_pb2.SamplingParams | None,
    field: str,
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(prompt, greedy(3), [prefill, prefill], raw_sampling=sampling)
        finished = await answer.end()
        assert finished.error.code == common_pb2.INVALID_REQUEST
        assert field in finished.error.message
        good = random_prompt(seeded)
        _, answer = await router.start(good, greedy(3), [prefill])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), good, 3)
        await decode.clean()
        await prefill.clean()


async def test_a_step_that_fails_on_the_prefill_is_tried_elsewhere(seeded: random.Random) -> None:
    model = GatedModel()
    model.fail_on = {1}
    prefill, spare, decode = prefill_worker(model=model), prefill_worker("p1"), decode_worker()
    prompt = random_prompt(seeded, 5, 60)
    async with running(prefill, spare, decode), session(decode) as router:
        _, answer = await router.start(prompt, greedy(4), [prefill, spare])
        await answer.end()
        assert answer.token_ids == expected_tokens(HashModel(), prompt, 4)
        for worker in (prefill, spare, decode):
            await worker.clean()


async def test_a_step_that_fails_on_the_rank_ends_the_request_with_its_reason(
    seeded: random.Random,
) -> None:
    model = GatedModel()
    model.fail_on = {2}
    prefill, decode = prefill_worker(), decode_worker(model=model)
    async with running(prefill, decode), session(decode) as router:
        _, answer = await router.start(random_prompt(seeded), greedy(9), [prefill])
        finished = await answer.end()
        assert finished.reason == common_pb2.ERROR
        assert "told to fail" in finished.error.message
        await decode.clean()
        await prefill.clean()


async def test_no_prefill_and_one_that_is_not_there_are_unavailable(seeded: random.Random) -> None:
    decode = decode_worker()
    gone = common_pb2.WorkerIdentity(worker_id="p9", incarnation=1, address="127.0.0.1:1")
    async with running(decode), session(decode) as router:
        for peers, named in (([], "names no prefill"), ([gone], "p9")):
            _, answer = await router.start(random_prompt(seeded), greedy(3), peers)
            error = (await answer.end()).error
            assert error.code == common_pb2.UNAVAILABLE
            assert named in error.message
        await decode.clean()


async def test_a_prefill_that_came_back_at_its_address_is_not_taken_for_the_old_one(
    seeded: random.Random,
) -> None:
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        old = common_pb2.WorkerIdentity()
        old.CopyFrom(prefill.identity)
        old.incarnation -= 1
        _, answer = await router.start(random_prompt(seeded), greedy(3), [old])
        error = (await answer.end()).error
        assert error.code == common_pb2.UNAVAILABLE
        assert str(old.incarnation) in error.message
        _, answer = await router.start(random_prompt(seeded), greedy(3), [prefill])
        assert (await answer.end()).reason == common_pb2.LENGTH
        await decode.clean()


async def test_a_silent_router_loses_its_requests(seeded: random.Random) -> None:
    prefill, decode = prefill_worker(), decode_worker(lease_ms=LEASE_MS)
    async with running(prefill, decode), session(decode, lease_s=10_000) as router:
        prefill.model.gate.allow(0)
        await router.start(random_prompt(seeded), greedy(3), [prefill])
        await decode.reached(S.CANCELLED)
        prefill.model.gate.open()
        await decode.clean()
        await prefill.clean()


async def test_heartbeats_are_answered_with_their_sequence() -> None:
    decode = decode_worker(lease_ms=LEASE_MS)
    async with running(decode), session(decode, LEASE_MS / 1000) as router:
        await until(lambda: len(router.beats) >= 3)
        assert router.beats == sorted(set(router.beats))
