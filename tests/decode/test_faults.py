"""Whatever breaks, in whatever state of the hand-off: no wrong token, and nothing is kept."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest
from engine.engines import greedy, random_prompt
from engine.hash_model import HashModel, expected_tokens
from worker.cluster import (
    DEADLINE_S,
    Answer,
    RouterClient,
    TestWorker,
    decode_worker,
    prefill_worker,
    running,
    session,
)
from worker.proxy import Proxy, proxied

from baton.engine.request.request import Reservation
from baton.proto import common_pb2
from baton.transfer.handoff import HandoffState

S = HandoffState
TOKENS = 10
LEASE_MS = 600  # where a test waits for it to end
LEASES_MS = {"cut": 30_000, "silent": LEASE_MS}


@dataclass
class Stuck:
    """A request that stays in one state until `release`."""

    prefill: TestWorker
    spare: TestWorker
    decode: TestWorker
    router: RouterClient
    proxy: Proxy
    prompt: tuple[int, ...]
    request_id: str
    answer: Answer
    hog: Reservation | None = None

    async def release(self) -> None:
        self.prefill.model.gate.open()
        self.decode.model.gate.open()
        if self.hog is not None:
            hog = self.hog
            await self.decode.context.port.call(lambda engine: engine.reservations.abandon(hog))

    async def clean(self) -> None:
        for worker in (self.decode, self.spare, self.prefill):
            await worker.clean()


STATES = ["queued", "scheduled", "held", "reserved", "writing", "complete", "active"]


@asynccontextmanager
async def stuck(
    state: str, rng: random.Random, *, fallback: bool = False, lease_ms: int = 30_000
) -> AsyncIterator[Stuck]:
    """`held`: scheduled, and the first token sampled, but there is no ticket."""
    prefill, spare = prefill_worker(lease_ms=lease_ms), prefill_worker("p1", lease_ms=lease_ms)
    decode = decode_worker(pages=40, lease_ms=lease_ms)
    prompt = random_prompt(rng, 40, 60)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(prefill, spare, decode))
        router = await stack.enter_async_context(session(decode, lease_ms / 1000))
        proxy, seen = await stack.enter_async_context(proxied(prefill.identity))
        hog = None
        if state in ("scheduled", "held"):
            hog = await decode.context.port.call(lambda engine: engine.reserve("hog", 312))
        if state == "queued":
            prefill.model.gate.allow(0)
            await router.start(random_prompt(rng, 30, 30), greedy(1), [prefill])
            await prefill.reached(S.SCHEDULED)
        elif state in ("scheduled", "reserved"):
            prefill.model.gate.allow(0)
        elif state in ("writing", "complete"):
            prefill.model.gate.allow(1)
        elif state == "active":
            decode.model.gate.allow(3)
        peers = [seen, spare.identity] if fallback else [seen]
        before = decode.been_in(S.ACTIVE)
        request_id, answer = await router.start(prompt, greedy(TOKENS), peers)
        case = Stuck(prefill, spare, decode, router, proxy, prompt, request_id, answer, hog)
        if state == "queued":
            await prefill.opened(2)
        elif state == "held":
            await answer.until(lambda answer: answer.token_ids)
        elif state == "complete":
            await decode.reached(S.WRITING)
            decode.model.gate.allow(0)
            await router.start(random_prompt(rng, 5, 5), greedy(40), [spare])
            await decode.reached(S.ACTIVE, before + 1)
            await decode.blocked()
            prefill.model.gate.open()
            await decode.reached(S.COMPLETE, 2)
        elif state == "active":
            await answer.until(lambda answer: len(answer.token_ids) >= 3)
        else:
            await decode.reached(S(state))
        yield case


async def still_serves(case: Stuck, rng: random.Random) -> None:
    """Both workers take another request, and answer it right. On a busy machine they may miss a
    short lease meanwhile."""
    prompt = random_prompt(rng, 5, 40)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            _, answer = await case.router.start(prompt, greedy(5), [case.prefill])
            finished = await answer.end()
            if finished.reason != common_pb2.ERROR or "lease" not in finished.error.message:
                break
    assert answer.token_ids == expected_tokens(HashModel(), prompt, 5), finished.error


@pytest.mark.parametrize("state", STATES)
async def test_a_cancel_frees_both_sides(state: str, seeded: random.Random) -> None:
    async with stuck(state, seeded) as case:
        await case.router.cancel(case.request_id)
        if state not in ("complete", "active"):  # those wait for the engine's step
            assert (await case.answer.end()).reason == common_pb2.ABORT
        await case.release()
        finished = await case.answer.end()
        assert finished.reason == common_pb2.ABORT
        assert finished.error.code == common_pb2.CANCELLED
        wanted = expected_tokens(HashModel(), case.prompt, TOKENS)
        assert case.answer.token_ids == wanted[: len(case.answer.token_ids)]
        await still_serves(case, seeded)
        await case.clean()


@pytest.mark.parametrize("state", STATES)
async def test_a_router_that_goes_away_cancels_its_requests(
    state: str, seeded: random.Random
) -> None:
    async with stuck(state, seeded) as case:
        case.router.close()
        await case.release()
        await case.clean()


@pytest.mark.parametrize("fault", ["cut", "silent"])
@pytest.mark.parametrize("state", STATES)
async def test_a_lost_prefill_is_an_error_that_says_so(
    state: str, fault: str, seeded: random.Random
) -> None:
    async with stuck(state, seeded, lease_ms=LEASES_MS[fault]) as case:
        case.proxy.cut() if fault == "cut" else case.proxy.freeze()
        if state in ("complete", "active"):
            await case.release()
            assert (await case.answer.end()).reason == common_pb2.LENGTH, "all was here already"
            assert case.answer.token_ids == expected_tokens(HashModel(), case.prompt, TOKENS)
        else:
            finished = await case.answer.end()
            assert finished.reason == common_pb2.ERROR
            assert (finished.error.code, finished.error.retryable) == (common_pb2.UNAVAILABLE, True)
            assert "p0" in finished.error.message
            if fault == "silent":
                assert "silent for its lease" in finished.error.message
            await case.release()
        await still_serves(case, seeded)
        await case.clean()


@pytest.mark.parametrize("fault", ["cut", "silent"])
@pytest.mark.parametrize("state", STATES)
async def test_a_lost_prefill_is_replaced_and_no_token_is_wrong(
    state: str, fault: str, seeded: random.Random
) -> None:
    async with stuck(state, seeded, fallback=True, lease_ms=LEASES_MS[fault]) as case:
        case.proxy.cut() if fault == "cut" else case.proxy.freeze()
        if case.hog is not None:  # it is the rank's memory that is short, on either try
            await case.decode.reached(S.EXPIRED)
        if state not in ("complete", "active"):
            await case.decode.reached(S.EXPIRED)
        await case.release()
        assert (await case.answer.end()).reason == common_pb2.LENGTH
        assert case.answer.token_ids == expected_tokens(HashModel(), case.prompt, TOKENS)
        await case.clean()


@pytest.mark.parametrize("state", STATES)
async def test_a_prefill_that_stops_says_why(state: str, seeded: random.Random) -> None:
    async with stuck(state, seeded) as case:
        await case.prefill.service.close()
        await case.release()
        finished = await case.answer.end()
        if state in ("complete", "active"):
            assert finished.reason == common_pb2.LENGTH
        else:
            assert finished.error.origin == "p0"
            assert "is stopping" in finished.error.message
        await case.clean()


async def test_memory_that_comes_after_a_cancel_goes_back(seeded: random.Random) -> None:
    """The rank's engine was asked for room, and answers when nobody wants it any more."""
    prefill, decode = prefill_worker(), decode_worker()
    async with running(prefill, decode), session(decode) as router:
        decode.model.gate.allow(0)
        _, busy = await router.start(random_prompt(seeded), greedy(3), [prefill])
        await decode.reached(S.ACTIVE)
        await decode.blocked()
        late, answer = await router.start(random_prompt(seeded), greedy(3), [prefill])
        await decode.reached(S.SCHEDULED, 2)
        await asyncio.sleep(0.05)  # the call stands in the engine's queue by now
        await router.cancel(late)
        assert (await answer.end()).reason == common_pb2.ABORT
        decode.model.gate.open()
        await busy.end()
        await decode.clean()
        await prefill.clean()
