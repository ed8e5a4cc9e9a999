"""A prefill worker, met by a decode rank that is this test."""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from certificates import credentials_of
from engine.engines import greedy, make_engine, random_prompt
from engine.hash_model import HashModel, LayeredHashModel, expected_tokens
from grpc import aio
from kit.polling import until, until_answered
from worker.cluster import DEADLINE_S, Gate, TestWorker, prefill_worker, running

from baton.core.handoff_ids import HandoffId
from baton.core.sampling_params import SamplingParams
from baton.core.state_ref import StateRef
from baton.engine.engine import Engine
from baton.prefill.handoff_writer import HandoffWriter
from baton.prefill.writer_state import WriterState
from baton.proto import common_pb2, handoff_pb2, handoff_pb2_grpc
from baton.rpc.channel_options import OPTIONS
from baton.rpc.convert import sampling_to_proto, ticket_to_proto
from baton.rpc.handoff_joins import parts_of
from baton.transfer.channels.grpc.receiver import StateChannelServicer
from baton.transfer.channels.grpc.write_operation import GrpcWriteOperation
from baton.transfer.handoff import HandoffState
from baton.transfer.hashes import prompt_hash, sampling_hash
from baton.transfer.memory.regions import EngineMemory
from baton.transfer.tickets import Received, Ticket, TicketTable

S = HandoffState


class SlowToSample(LayeredHashModel):
    """Waits between its last layer and the sampling."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    def forward(self, *args: Any) -> Any:
        logits = super().forward(*args)
        self.gate.pass_through()
        return logits


class FakeRank:
    """Pools of its own, a receiver, and one Control stream."""

    def __init__(self, prefill: TestWorker, model: HashModel | None) -> None:
        self.engine: Engine = make_engine(model)
        self.memory = EngineMemory(self.engine.states, self.engine.pages)
        self.tickets = TicketTable(self.memory, 0)
        self.prefill = prefill
        self.request: handoff_pb2.PrefillRequest
        self.call: Any  # the stream, which `ranked` opens
        self._came: deque[handoff_pb2.PrefillMessage] = deque()

    async def ask(
        self, prompt: tuple[int, ...], sampling: SamplingParams, first: int | None = None
    ) -> None:
        self.request = handoff_pb2.PrefillRequest(
            request_id="r",
            attempt=257,
            prompt_ids=prompt,
            sampling=sampling_to_proto(sampling),
            first_token=first,
        )
        await self.call.write(handoff_pb2.DecodeMessage(request=self.request))

    async def read(self) -> handoff_pb2.PrefillMessage:
        """Return the next message, whether it came by itself or with others."""
        while not self._came:
            self._came.extend(parts_of(await self.call.read()))
        return self._came.popleft()

    async def next(self, kind: str) -> Any:
        """The next message but heartbeats and progress, which must be of this kind."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = await self.read()
                found = message.WhichOneof("kind")
                if found not in ("heartbeat", "progress", "channel"):
                    break
        assert found == kind, message
        about = getattr(message, kind)
        assert (about.request_id, about.attempt) == ("r", 257)
        return about

    def grant(self, tokens: int) -> Ticket:
        pages = tuple(range(7, 7 + -(-tokens // 8)))
        return self.tickets.grant(
            HandoffId("r", 257),
            StateRef(3, pages, tokens),
            prompt_hash=prompt_hash(self.request.prompt_ids),
            sampling_hash=sampling_hash(self.request.sampling),
            on_received=lambda ticket: None,
            on_broken=lambda ticket, error: None,
        )

    async def send(self, ticket: Ticket, **wrong: Any) -> None:
        fields: dict[str, Any] = {
            "request_id": "r",
            "attempt": 257,
            **ticket_to_proto(ticket.name),
            "slot": ticket.target.slot,
            "pages": ticket.target.pages,
            "prompt_hash": ticket.claim.prompt_hash,
            "sampling_hash": ticket.claim.sampling_hash,
        }
        destination = handoff_pb2.Destination(**(fields | wrong))
        await self.call.write(handoff_pb2.DecodeMessage(destination=destination))


@asynccontextmanager
async def ranked(prefill: TestWorker, model: HashModel | None = None) -> AsyncIterator[FakeRank]:
    """model: like the prefill's; None: the plain one."""
    rank = FakeRank(prefill, model)
    server, credentials = aio.server(), credentials_of("decode", "d0")
    StateChannelServicer(rank.tickets, lambda kind, size: None).add_to(server)
    address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials.server())}"
    await server.start()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(prefill))
        dialling = credentials.dial_worker(prefill.identity, OPTIONS)
        channel = await stack.enter_async_context(dialling)
        rank.call = handoff_pb2_grpc.HandoffStub(channel).Control()
        hello = common_pb2.Hello()
        hello.CopyFrom(prefill.context.hello)
        hello.worker.worker_id, hello.worker.role = "d0", common_pb2.DECODE
        hello.worker.address = address
        hello.channels.add(channel="grpc")
        await rank.call.write(handoff_pb2.DecodeMessage(hello=hello))
        first = await rank.call.read()
        assert first.hello == prefill.context.hello
        yield rank
        rank.call.cancel()
    await server.stop(None)


async def test_the_words_of_a_hand_off_come_in_order(seeded: random.Random) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 20, 60)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        wanted = await rank.next("wanted")
        assert wanted.tokens == len(prompt)
        prefill.model.gate.open()
        first = await rank.next("first_token")
        assert first.token_id == expected_tokens(HashModel(), prompt, 1)[0]
        assert not first.HasField("finished")
        ticket = rank.grant(len(prompt))
        await rank.send(ticket)
        done = await rank.next("done")
        assert (done.ticket_id, done.generation) == ticket.name
        await prefill.reached(S.COMPLETE)
        got = rank.tickets.received(ticket.claim)
        assert (got.segments, got.bytes_state, got.bytes_kv) == (
            done.segments,
            done.bytes_state,
            done.bytes_kv,
        )
        assert rank.tickets.complete(ticket)
        await prefill.clean()


async def test_kv_goes_out_while_later_chunks_compute(seeded: random.Random) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 40, 60)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        await rank.send(ticket)
        await prefill.reached(S.RESERVED)
        prefill.model.gate.allow(1)
        token = prefill.engine.plan.page_layout.token_bytes
        await until(lambda: rank.tickets.received(ticket.claim).bytes_kv >= 16 * token)
        assert rank.tickets.received(ticket.claim).bytes_state == 0
        prefill.model.gate.open()
        await rank.next("first_token")
        await rank.next("done")
        await prefill.clean()


async def test_memory_is_free_before_the_rank_says_that_it_has_all(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, prompt, said = prefill_worker(), random_prompt(seeded, 5, 30), asyncio.Event()
    finish = GrpcWriteOperation.finish

    async def finish_late(self: GrpcWriteOperation) -> Received:
        await said.wait()
        return await finish(self)

    monkeypatch.setattr(GrpcWriteOperation, "finish", finish_late)
    async with ranked(prefill) as rank:
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        await rank.send(rank.grant(len(prompt)))
        await rank.next("first_token")
        await rank.next("done")

        async def nothing_is_held() -> bool:
            return not (await prefill.context.port.call(Engine.status)).held

        await until_answered(nothing_is_held)
        assert not prefill.been_in(S.COMPLETE) and not prefill.been_in(S.EXPIRED)
        said.set()
        await prefill.clean()


async def test_a_fault_of_ours_while_writing_reaches_the_rank(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: GrpcWriteOperation, segment: object, source: object) -> None:
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(GrpcWriteOperation, "write", broken)
    prefill, prompt = prefill_worker(), random_prompt(seeded, 5, 30)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        await rank.send(rank.grant(len(prompt)))
        await prefill.reached(S.RESERVED)
        prefill.model.gate.open()
        async with asyncio.timeout(DEADLINE_S):
            while (message := await rank.read()).WhichOneof("kind") != "failed":
                assert message.WhichOneof("kind") != "done"
        assert "nobody thought of this" in message.failed.error.message
        await prefill.clean()


@pytest.mark.parametrize("wrong", ["prompt_hash", "sampling_hash"])
async def test_a_ticket_for_another_request_is_not_written(
    wrong: str, seeded: random.Random
) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 5, 30)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        await rank.send(ticket, **{wrong: 1})
        failed = await rank.next("failed")
        assert "another prompt or cache salt, or for other" in failed.error.message
        drained = await rank.next("drained")
        assert (drained.ticket_id, drained.generation) == ticket.name
        prefill.model.gate.open()
        await prefill.clean()
        assert rank.tickets.received(ticket.claim).segments == 0


async def test_a_closed_ticket_is_reported_and_frees_the_prefill(seeded: random.Random) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 5, 30)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        rank.tickets.close(ticket)
        await rank.send(ticket)
        await prefill.reached(S.RESERVED)
        prefill.model.gate.open()
        kinds = set()
        async with asyncio.timeout(DEADLINE_S):
            while "failed" not in kinds:
                kinds.add((await rank.read()).WhichOneof("kind"))
        await prefill.clean()


async def test_the_first_token_says_that_all_is_written_where_it_was_before(
    seeded: random.Random,
) -> None:
    prefill, prompt = prefill_worker(model=SlowToSample(), chunk=64), random_prompt(seeded, 20, 60)
    async with ranked(prefill, LayeredHashModel()) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        await rank.send(ticket)
        (handoff,) = prefill.service._handoffs.values()
        await until(lambda: handoff._writer.state is WriterState.POSTED)
        prefill.model.gate.open()
        first = await rank.next("first_token")
        done = first.done
        assert (done.ticket_id, done.generation) == ticket.name
        await prefill.reached(S.COMPLETE)
        got = rank.tickets.received(ticket.claim)
        assert got == Received(done.segments, done.bytes_state, done.bytes_kv)
        assert rank.tickets.complete(ticket)
        await prefill.clean()


async def test_a_given_first_token_is_neither_sampled_nor_sent(seeded: random.Random) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 5, 30)
    async with ranked(prefill) as rank:
        await rank.ask(prompt, greedy(1), first=11)
        await rank.next("wanted")
        await rank.send(rank.grant(len(prompt)))
        await rank.next("done")
        await prefill.clean()


async def test_scores_of_the_prompt_come_as_its_chunks_end(seeded: random.Random) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 40, 60)
    async with ranked(prefill) as rank:
        sampling = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs_start=0)
        await rank.ask(prompt, sampling)
        scored: list[int] = []
        while len(scored) < len(prompt):
            scores = await rank.next("scores")
            assert scores.logprobs.start == len(scored)
            scored += [entry.token_id for entry in scores.logprobs.tokens]
        assert scored == list(prompt)
        first = await rank.next("first_token")
        assert first.finished.usage.completion_tokens == 0
        await prefill.clean()


async def test_the_second_prompt_that_shares_a_prefix_is_partly_cached(
    seeded: random.Random,
) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 60, 60)
    async with ranked(prefill) as rank:
        for tail, cached in ((1, False), (2, True)):
            await rank.ask((*prompt, tail), greedy(1))
            first = await rank.next("first_token")
            assert bool(first.cached_tokens) == cached
            assert first.token_id == expected_tokens(HashModel(), (*prompt, tail), 1)[0]
        await prefill.clean()


@pytest.mark.parametrize("when", ["before a ticket", "with a ticket", "long after"])
async def test_a_cancel_that_names_a_ticket_is_answered_with_its_drain(
    when: str, seeded: random.Random
) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 20, 60)
    async with ranked(prefill) as rank:
        prefill.model.gate.allow(0)
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        cancel = handoff_pb2.CancelPrefill(
            request_id="r",
            attempt=257,
            **ticket_to_proto(ticket.name),
        )
        if when == "before a ticket":  # it crosses the ticket, which comes too late
            await rank.call.write(handoff_pb2.DecodeMessage(cancel=cancel))
            await prefill.reached(S.CANCELLED)
            await rank.send(ticket)
        else:
            await rank.send(ticket)
            await rank.call.write(handoff_pb2.DecodeMessage(cancel=cancel))
        drained = await rank.next("drained")
        assert (drained.ticket_id, drained.generation) == ticket.name
        if when == "long after":
            prefill.model.gate.open()
            await prefill.clean()
            await rank.call.write(handoff_pb2.DecodeMessage(cancel=cancel))
            assert await rank.next("drained") == drained
        prefill.model.gate.open()
        await prefill.clean()


async def test_a_cancel_between_the_receipt_and_the_last_move_is_answered_with_its_drain(
    seeded: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, prompt = prefill_worker(), random_prompt(seeded, 20, 60)
    receipt = HandoffWriter.receipt

    async def receipt_then_cancel(self: HandoffWriter) -> None:
        await receipt(self)
        (handoff,) = prefill.service._handoffs.values()
        handoff.cancel("the bytes are not what was sent")  # as one that is read just then

    monkeypatch.setattr(HandoffWriter, "receipt", receipt_then_cancel)
    async with ranked(prefill) as rank:
        await rank.ask(prompt, greedy(5))
        await rank.next("wanted")
        ticket = rank.grant(len(prompt))
        await rank.send(ticket)
        await rank.next("first_token")
        await rank.next("done")
        drained = await rank.next("drained")
        assert (drained.ticket_id, drained.generation) == ticket.name
        assert prefill.been_in(S.CANCELLED) and not prefill.been_in(S.COMPLETE)
        await prefill.clean()
