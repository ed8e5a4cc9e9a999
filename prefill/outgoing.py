"""One hand-off on the prefill worker: from a request's arrival to the release of its state."""

import asyncio
from collections.abc import Callable

from baton.core.error_codes import ErrorCode
from baton.core.errors import StoppedError
from baton.core.state_ref import StateRef
from baton.core.supervised import OnFailure, spawn
from baton.engine.request.events import (
    ChunkComputed,
    Event,
    PrefillHeld,
    PromptScored,
    RequestFinished,
    Scheduled,
    TokenSampled,
)
from baton.engine.request.request import Parked
from baton.engine.step.layer_progress import LayersComputed
from baton.prefill.engine_request import EngineRequest
from baton.prefill.first_token import FirstTokenRecord
from baton.prefill.handoff_writer import HandoffWriter
from baton.prefill.messages import HandoffMessages
from baton.prefill.peer_connection import PeerConnection
from baton.prefill.prompt_state import PromptState
from baton.prefill.writer_state import WriterState
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import finished_to_proto, handoff_from_proto, ticket_from_proto
from baton.rpc.errors import error_of, make_error
from baton.rpc.streams import check_cancelled
from baton.transfer.errors import ChannelError, TicketError
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.hashes import prompt_hash, sampling_hash
from baton.transfer.tickets import Claim
from baton.worker.caller_span import CallerSpan
from baton.worker.context import WorkerContext
from baton.worker.convert import finished_of
from baton.worker.prefix_fetcher import PrefixFetcher


class OutgoingHandoff:
    """Joins one request's engine, its writer and the messages to its rank.

    Every method is called on the asyncio thread.
    """

    def __init__(
        self,
        context: WorkerContext,
        peer: PeerConnection,
        request: handoff_pb2.PrefillRequest,
        engine_id: str,
        fetcher: PrefixFetcher,
        on_end: Callable[["OutgoingHandoff"], None],
    ) -> None:
        """engine_id: see `EngineRequest`. on_end: called once, after the last move."""
        self.name = name = handoff_from_proto(request)
        self._context = context
        self._request = request
        self._on_end = on_end
        self._handoff: Handoff = context.handoffs.open(name)
        self._engine = EngineRequest(
            context, request, engine_id, fetcher, self._handoff, self._raised
        )
        self._messages = HandoffMessages(name, peer.send)
        self._first_token = FirstTokenRecord(name, context.metrics)
        trace = CallerSpan.of(context, request.trace, request.request_id)
        self._span = None if trace is None else trace.begin("prefill", attempt=request.attempt)
        self._prompt = PromptState(context.memory, len(request.prompt_ids))
        self._writer = HandoffWriter(
            self._handoff,
            self._prompt,
            context.memory.pages,
            peer,
            self._messages,
            context.worker_id,
        )
        self._writing: asyncio.Task[None] | None = None  # from the ticket on
        self._released = False  # the engine has the state's memory back

    @property
    def engine_id(self) -> str:
        return self._engine.engine_id

    @property
    def ended(self) -> bool:
        return self._handoff.over_for_sender

    def begin(self) -> None:
        """Submit the request to the engine. An invalid request is answered with Failed."""
        self._engine.begin()

    def on_event(self, event: Event, parked_state: Parked | None, at_s: float) -> None:
        """Handle an event of the engine. parked_state: where the state lies, if it may be read."""
        if self.ended:
            return
        if parked_state is not None:
            self._prompt.on_parked_state(parked_state)
        match event:
            case Scheduled():
                self._scheduled(event, at_s)
            case ChunkComputed():
                self._chunk_computed(event)
            case PromptScored():
                self._messages.scores(event)
            case TokenSampled():  # what follows in the same batch sends it
                self._first_token.on_sampled(event, at_s)
            case PrefillHeld():
                self._prompt_complete(at_s)
            case RequestFinished():
                self._finished(event, at_s)

    def on_layers(self, computed: LayersComputed, at_s: float) -> None:
        """Handle the engine's report that layers of the last chunk are computed."""
        if not self.ended:
            self._prompt.on_layers(computed, at_s)

    def on_destination(self, destination: handoff_pb2.Destination) -> None:
        """Take the rank's ticket and begin to write what is computed already."""
        if self.ended or self._writer.state is not WriterState.WAITING:
            return
        claim = _claim(self._request, destination)
        self._handoff.move(HandoffState.RESERVED)
        self._writer.grant(claim)  # also a wrong ticket is ended by `Drained`
        try:
            _check(claim, destination)
        except TicketError as error:
            self._raised(error)
            return
        self._engine.destined()
        # END: whatever fails in writing is told to the rank, which waits. If that fails as well,
        # the rank would wait for ever.
        self._writing = spawn(
            lambda: self._hand_over(claim, destination),
            self._context.owner,
            OnFailure.END,
            f"hand-off {self.engine_id}",
            may_return=True,
        )

    def cancel(self, reason: str) -> None:
        """End because the rank no longer wants the state."""
        self._end(HandoffState.CANCELLED, reason)

    def expire(self, reason: str) -> None:
        """End because the rank's stream ended, or was silent for its lease."""
        self._end(HandoffState.EXPIRED, reason)

    def fail(self, error: common_pb2.Error) -> None:
        """Tell the rank, and end."""
        if self.ended:
            return
        self._messages.failed(error)
        self._end(HandoffState.FAILED, error.message)

    def _raised(self, error: BaseException) -> None:
        if isinstance(error, StoppedError):
            return  # the engine has ended: `fail` follows once the routers have heard
        self.fail(error_of(error, self._context.worker_id))

    def _scheduled(self, event: Scheduled, at_s: float) -> None:
        self._first_token.on_scheduled(event, at_s)
        self._handoff.move(HandoffState.SCHEDULED)
        if self._engine.first_token_is_given or self._request.sampling.max_tokens > 1:
            self._messages.want_destination(len(self._request.prompt_ids))

    def _chunk_computed(self, event: ChunkComputed) -> None:
        self._context.metrics.count_tokens("prompt", event.end - event.start)
        if event.end < len(self._request.prompt_ids):  # the first token reports the last chunk
            self._messages.progress(event.end)

    def _prompt_complete(self, at_s: float) -> None:
        self._prompt.on_complete(at_s)
        if self._span is not None:
            self._span.end(prompt_tokens=len(self._request.prompt_ids))
        if not self._engine.first_token_is_given:
            done = self._writer.take_done()
            fetch = self._engine.fetch
            self._messages.first_token(self._first_token.message(at_s, done=done, fetch=fetch))

    def _finished(self, event: RequestFinished, at_s: float) -> None:
        """End a request that ended in the engine: at its first token, without one, or failed."""
        finished = finished_to_proto(finished_of(event, self._context.worker_id))
        if finished.HasField("error"):
            self.fail(finished.error)
        elif self._engine.first_token_is_given:
            message = "prompt and first token fill the context of this worker"
            self.fail(make_error(ErrorCode.TOO_LARGE, self._context.worker_id, message))
        else:
            fetch = self._engine.fetch
            first = self._first_token.message(at_s, finished=finished, fetch=fetch)
            self._messages.first_token(first)
            self._end(HandoffState.COMPLETE, "ended at its first token", event.end.reason.value)

    async def _write(self, claim: Claim, destination: handoff_pb2.Destination) -> None:
        target = StateRef(destination.slot, tuple(destination.pages), kv_from=destination.kv_from)
        await self._writer.write(claim, target)
        self._engine.release()  # the pools need not wait for the rank's receipt
        self._released = True
        await self._writer.receipt()

    async def _hand_over(self, claim: Claim, destination: handoff_pb2.Destination) -> None:
        """Write, and end with the result."""
        try:
            await self._write(claim, destination)
        except asyncio.CancelledError:
            check_cancelled()  # else something was cancelled under it
            self._raised(ChannelError("the write was cancelled"))
        except Exception as error:  # every one ends it: the rank must not wait on
            self._raised(error)
        else:
            self._end(HandoffState.COMPLETE, "handed over", "handed_over")

    def _end(self, state: HandoffState, reason: str, outcome: str = "") -> None:
        """Make the last move. The engine frees the state once the channel no longer reads it.

        outcome: the metric's label, where it is not the name of `state`.
        """
        if self.ended:
            return
        self._handoff.move(state, reason)
        if self._writing is not None:
            self._writing.cancel()
        self._writer.stop(lambda: None if self._released else self._engine.cancel(reason))
        self._context.handoffs.close(self._handoff)
        if self._span is not None:  # it has ended already where the prompt was computed
            self._span.end("" if state is HandoffState.COMPLETE else reason)
        self._context.metrics.count_prefill(outcome or state.value)
        self._on_end(self)


def _claim(request: handoff_pb2.PrefillRequest, destination: handoff_pb2.Destination) -> Claim:
    """Return the claim on the rank's ticket."""
    return Claim(
        ticket_from_proto(destination),
        prompt_hash(request.prompt_ids, request.cache_salt),
        sampling_hash(request.sampling),
    )


def _check(claim: Claim, destination: handoff_pb2.Destination) -> None:
    """Raise TicketError if the rank's ticket is for another request."""
    expected = (claim.prompt_hash, claim.sampling_hash)
    actual = (destination.prompt_hash, destination.sampling_hash)
    if expected != actual:
        raise TicketError(
            f"ticket {claim.ticket.number} is for another prompt or cache salt, or for other "
            "sampling parameters",
            " ".join(f"{part:016x}" for part in expected),
            " ".join(f"{part:016x}" for part in actual),
        )
