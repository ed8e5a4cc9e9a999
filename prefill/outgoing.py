"""One hand-off on its way out: from a request's arrival to the release of its state."""

import asyncio
import time
from collections.abc import Callable

from baton.engine.errors import RequestError
from baton.engine.events import (
    ChunkComputed,
    Event,
    Finished,
    PrefillHeld,
    PromptScored,
    Scheduled,
    TokenSampled,
)
from baton.engine.layer_progress import LayersComputed
from baton.engine.request import Holding, RequestSpec
from baton.engine.sampling_params import SamplingParams
from baton.prefill.drains import WrittenTicket
from baton.prefill.way import Way
from baton.proto import common_pb2, handoff_pb2
from baton.text.grammar import CompiledGrammar
from baton.transfer.channel import Writing
from baton.transfer.errors import TicketError, TransferError
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.hashes import prompt_hash, sampling_hash
from baton.transfer.outflow import Outflow
from baton.transfer.regions import Holder
from baton.transfer.segments import Segment, nbytes
from baton.transfer.tickets import Claim, Received
from baton.worker.config import StateReturn
from baton.worker.context import WorkerContext
from baton.worker.convert import (
    finished_to_proto,
    logprob_to_proto,
    sampling_from_proto,
    scores_to_proto,
)
from baton.worker.errors import error_of, make_error
from baton.worker.handoff_name import HandoffName
from baton.worker.prefix_fetcher import PrefixFetcher

# A request whose first token is given is sampled nowhere here, and must not end here either.
_GIVEN = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


class OutgoingHandoff:
    """Everything happens on the asyncio thread. Nothing is buffered: what is computed waits in the
    engine's own pages until the destination is known.

    The channel may read the engine's memory from `write` on until it has flushed or drained: only
    then does the engine get it back.
    """

    def __init__(
        self,
        context: WorkerContext,
        way: Way,
        request: handoff_pb2.PrefillRequest,
        engine_id: str,
        fetcher: PrefixFetcher,
        on_end: Callable[["OutgoingHandoff"], None],
    ) -> None:
        """engine_id: the request's name in this engine; unique, where attempts may overlap."""
        self.engine_id = engine_id
        self.key = (request.request_id, request.attempt)
        self._name = HandoffName(request_id=request.request_id, attempt=request.attempt)
        self._context = context
        self._way = way
        self._request = request
        self._send = way.send
        self._fetcher = fetcher
        self._on_end = on_end
        self._handoff: Handoff = context.handoffs.open(*self.key)
        self._tokens = len(request.prompt_ids)
        self._arrived_s = time.monotonic()
        self._scheduled_s = self._arrived_s
        self._first_token = handoff_pb2.FirstToken(**self._name)
        self._holding: Holding | None = None
        self._flow = Outflow(context.memory.slots, context.memory.pages, self._tokens)
        self._held = False  # the state of the whole prompt is there, and its first token is known
        self._layers_s = 0.0  # when the last layer was done; 0: it is not, or nobody said so
        self._more = asyncio.Event()  # there is more to write
        self._writer: asyncio.Task[None] | None = None
        self._writing: Writing | None = None
        self._posted: Received | None = None  # what was, once nothing more is to be
        self._done_sent = False
        self._ticket: WrittenTicket | None = None

    @property
    def given(self) -> bool:
        """The first token came with the request: an earlier attempt has sampled it."""
        return self._request.HasField("first_token")

    @property
    def ended(self) -> bool:
        return self._handoff.over or self._handoff.state is HandoffState.COMPLETE

    def begin(self) -> None:
        """Fetch the state that someone has of the prompt, if anyone has, and submit the request.
        Without that state it is computed: nothing that goes wrong there is heard of here."""
        at = self._request.state_at
        if at.tokens and self._context.config.state_return is not StateReturn.OFF:
            prefix = tuple(self._request.prompt_ids[: at.tokens])
            self._fetcher.start(at.worker, prefix).add_done_callback(lambda _: self.submit())
        else:
            self.submit()

    def submit(self) -> None:
        """Queue the request in the engine. What is wrong with it goes back as Failed."""
        if self.ended:
            return
        request = self._request
        try:
            sampling = _GIVEN if self.given else sampling_from_proto(request.sampling)
        except RequestError as error:
            self.fail(error_of(error, self._context.worker_id))
            return
        outputs = (request.first_token,) if self.given else ()
        spec = RequestSpec(
            self.engine_id,
            tuple(request.prompt_ids),
            sampling,
            outputs,
            hold=True,
            priority=request.priority,
        )
        self._context.grammars.compile(
            sampling.grammar,
            lambda grammar: self._queue(spec, grammar),
            lambda error: self.fail(error_of(error, self._context.worker_id)),
        )

    def on_event(self, event: Event, holding: Holding | None, at_s: float) -> None:
        """holding: where the state lies, if it may be read now."""
        if self.ended:
            return
        if holding is not None:
            self._holding = holding
            self._flow.computed(holding.computed)
        match event:
            case Scheduled():
                self._scheduled(event, at_s)
            case ChunkComputed():
                self._chunk_computed(event)
            case PromptScored():
                self._scored(event)
            case TokenSampled():
                self._sampled(event, at_s)
            case PrefillHeld():
                self._state_ready(at_s)
            case Finished():
                self._finished(event, at_s)

    def on_layers(self, computed: LayersComputed, at_s: float) -> None:
        """Its last chunk has come so far; its step goes on."""
        if self.ended:
            return
        self._holding = computed.holding
        self._flow.layers(computed.start, computed.recurrent, computed.attention)
        if computed.last:
            self._layers_s = at_s
        self._more.set()

    def on_destination(self, destination: handoff_pb2.Destination) -> None:
        """The ticket: writing begins with what is computed already."""
        if self.ended or self._writer is not None:
            return
        claim = Claim(
            destination.ticket_id,
            destination.generation,
            prompt_hash(self._request.prompt_ids),
            sampling_hash(self._request.sampling),
        )
        if (claim.prompt_hash, claim.sampling_hash) != (
            destination.prompt_hash,
            destination.sampling_hash,
        ):
            error = TicketError(
                f"ticket {claim.ticket_id} is for another prompt or other sampling parameters",
                f"{claim.prompt_hash:016x} {claim.sampling_hash:016x}",
                f"{destination.prompt_hash:016x} {destination.sampling_hash:016x}",
            )
            self.fail(error_of(error, self._context.worker_id))
            return
        self._handoff.move(HandoffState.RESERVED)
        self._ticket = self._way.ticket(claim.ticket_id, claim.generation)
        self._way.drains.opened(self._ticket)
        self._context.port.post(lambda engine: engine.destined(self.engine_id), "destined")
        self._writer = asyncio.ensure_future(self._write(destination, claim))
        self._writer.add_done_callback(self._written)

    def cancel(self, reason: str) -> None:
        """The rank wants it no more."""
        self._end(HandoffState.CANCELLED, reason)

    def expire(self, reason: str) -> None:
        """The rank's stream has ended, or was silent for its lease."""
        self._end(HandoffState.EXPIRED, reason)

    def fail(self, error: common_pb2.Error) -> None:
        """Tell the rank, and give up."""
        if self.ended:
            return
        failed = handoff_pb2.Failed(**self._name, error=error)
        self._send(handoff_pb2.PrefillMessage(failed=failed))
        self._end(HandoffState.FAILED, error.message)

    def _queue(self, spec: RequestSpec, grammar: CompiledGrammar | None) -> None:
        if self.ended:
            return
        self._context.port.request(
            lambda engine: engine.submit(spec, grammar),
            lambda _: None,
            lambda error: self.fail(error_of(error, self._context.worker_id)),
        )

    def _scheduled(self, event: Scheduled, at_s: float) -> None:
        self._first_token.cached_tokens = event.cached_tokens
        self._scheduled_s = at_s
        self._context.metrics.prefill_queue.observe(at_s - self._arrived_s)
        self._handoff.move(HandoffState.SCHEDULED)
        if self.given or self._request.sampling.max_tokens > 1:
            wanted = handoff_pb2.DestinationWanted(**self._name, tokens=self._tokens)
            self._send(handoff_pb2.PrefillMessage(wanted=wanted))

    def _chunk_computed(self, event: ChunkComputed) -> None:
        self._context.metrics.count_tokens("prompt", event.end - event.start)
        if event.end < self._tokens:  # what follows the last chunk says as much
            progress = handoff_pb2.Progress(**self._name, computed_tokens=event.end)
            self._send(handoff_pb2.PrefillMessage(progress=progress))
        self._more.set()

    def _scored(self, event: PromptScored) -> None:
        logprobs = scores_to_proto(event.start, event.logprobs)
        scores = handoff_pb2.PromptScores(**self._name, logprobs=logprobs)
        self._send(handoff_pb2.PrefillMessage(scores=scores))

    def _sampled(self, event: TokenSampled, at_s: float) -> None:
        """Held or Finished follows in the same batch, and sends it."""
        self._context.metrics.prefill.observe(at_s - self._scheduled_s)
        self._context.metrics.count_tokens("output", 1)
        self._first_token.token_id = event.token_id
        if event.logprob is not None:
            self._first_token.logprob.CopyFrom(logprob_to_proto(event.logprob))

    def _send_first_token(self, at_s: float) -> None:
        self._first_token.prefill_queue_us = _us(self._scheduled_s - self._arrived_s)
        self._first_token.prefill_us = _us(at_s - self._scheduled_s)
        self._send(handoff_pb2.PrefillMessage(first_token=self._first_token))

    def _state_ready(self, at_s: float) -> None:
        """Where all was posted before the token was sampled, one message says both."""
        self._held = True
        self._flow.held()
        self._layers_s = self._layers_s or at_s
        if not self.given:
            if self._posted is not None:
                self._first_token.done.CopyFrom(self._done(self._posted))
                self._done_sent = True
            self._send_first_token(at_s)
        self._more.set()

    def _finished(self, event: Finished, at_s: float) -> None:
        """It ended here: at its first token, without one, or by a fault."""
        finished = finished_to_proto(event, self._context.worker_id)
        if finished.HasField("error"):
            self.fail(finished.error)
        elif self.given:
            message = "prompt and first token fill the context of this worker"
            self.fail(make_error(common_pb2.TOO_LARGE, self._context.worker_id, message))
        else:
            self._first_token.finished.CopyFrom(finished)
            self._send_first_token(at_s)
            self._end(HandoffState.COMPLETE, "ended at its first token", event.reason.value)

    async def _write(self, destination: handoff_pb2.Destination, claim: Claim) -> None:
        try:
            connection = await self._way.connection()
            target = Holder(destination.slot, tuple(destination.pages))
            self._writing = writing = connection.open(claim, target, self._moving)
            self._flow.begin(destination.kv_from, connection.segment_bytes)
            sent = self._posted = await self._write_all(writing)
            while not self._held:
                await self._wait_for_more()
            if not self._done_sent:
                self._send(handoff_pb2.PrefillMessage(done=self._done(sent)))
            await writing.flush()
            # The last byte has left the pools: they need not wait for the rank to say so.
            self._context.port.post(lambda engine: engine.release(self.engine_id), "release")
            received = await writing.finish()
        except TransferError as error:
            self.fail(error_of(error, self._context.worker_id))
            return
        if received == sent:
            assert self._ticket is not None
            self._way.drains.closed(self._ticket)
            self._ticket = None
            self._end(HandoffState.COMPLETE, "handed over", "handed_over")
        else:
            message = f"{self._way.rank.worker_id} has {received} of {sent}"
            self.fail(make_error(common_pb2.DATA_LOSS, self._context.worker_id, message, True))

    def _written(self, writer: "asyncio.Task[None]") -> None:
        """A fault that `_write` does not know ends the hand-off too: the rank would wait for it."""
        if not writer.cancelled() and (fault := writer.exception()) is not None:
            self.fail(error_of(fault, self._context.worker_id))

    async def _write_all(self, writing: Writing) -> Received:
        """KV as its chunks end, the last chunk's and the state as their layers do. What was sent.

        Waits for this worker's own engine alone: if that fails, so does the hand-off.
        """
        sent = Received(0, 0, 0)
        while not self._flow.over:
            ready = self._flow.take()
            for segment in ready:
                sent = await self._write_one(writing, segment, sent)
            if not ready and not self._flow.over:  # else more may have come meanwhile
                await self._wait_for_more()
        return sent

    def _done(self, sent: Received) -> handoff_pb2.Done:
        assert self._ticket is not None
        return handoff_pb2.Done(
            **self._name,
            ticket_id=self._ticket.ticket_id,
            generation=self._ticket.generation,
            segments=sent.segments,
            bytes_state=sent.bytes_state,
            bytes_kv=sent.bytes_kv,
            tail_us=_us(time.monotonic() - self._layers_s),
            cached_state=self._holding.cached_state if self._holding else 0,
        )

    async def _write_one(self, writing: Writing, segment: Segment, sent: Received) -> Received:
        if self._handoff.state is HandoffState.RESERVED:
            self._handoff.move(HandoffState.WRITING)
        assert self._holding is not None
        holder = Holder(self._holding.slot, self._holding.pages)
        await writing.write(segment, holder)
        return sent.plus(segment.kind, nbytes(segment, self._context.memory.pages))

    async def _wait_for_more(self) -> None:
        self._more.clear()
        await self._more.wait()

    def _moving(self, under_way: bool, segments: int) -> None:
        """The channel's word to the rank: when to look out for what it writes by itself."""
        assert self._ticket is not None
        moving = handoff_pb2.Moving(
            **self._name,
            ticket_id=self._ticket.ticket_id,
            generation=self._ticket.generation,
            under_way=under_way,
            segments=segments,
        )
        self._send(handoff_pb2.PrefillMessage(moving=moving))

    def _end(self, state: HandoffState, reason: str, outcome: str = "") -> None:
        """The last move. Nothing more is posted; the engine has its memory back once nothing of
        it is under way."""
        if self.ended:
            return
        self._handoff.move(state, reason)
        if self._writer is not None and self._writer is not asyncio.current_task():
            self._writer.cancel()
        if self._ticket is None:
            self._cancel_in_engine(reason)
        elif self._writing is None:
            self._drained(self._ticket, reason)
            self._way.drains.closed(self._ticket)
        else:
            ticket = self._ticket
            self._writing.cancel()
            self._way.drains.drain(ticket, self._writing, lambda: self._drained(ticket, reason))
        self._context.handoffs.close(self._handoff)
        self._context.metrics.count_request(outcome or state.value)
        self._on_end(self)

    def _drained(self, ticket: WrittenTicket, reason: str) -> None:
        """Proof for the rank that its memory is its own again."""
        drained = handoff_pb2.Drained(
            **self._name, ticket_id=ticket.ticket_id, generation=ticket.generation
        )
        self._send(handoff_pb2.PrefillMessage(drained=drained))
        self._cancel_in_engine(reason)

    def _cancel_in_engine(self, reason: str) -> None:
        self._context.port.post(lambda engine: engine.cancel(self.engine_id, reason), "cancel")


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
