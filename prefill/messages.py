"""Messages from the prefill worker to a decode rank about one hand-off."""

from collections.abc import Callable

from baton.core.handoff_ids import HandoffId
from baton.engine.request.events import PromptScored
from baton.prefill.open_writes import WrittenTicket
from baton.proto import common_pb2, handoff_pb2
from baton.rpc.convert import handoff_to_proto, prompt_logprobs_to_proto, ticket_to_proto

Send = Callable[[handoff_pb2.PrefillMessage], None]


class HandoffMessages:
    """Builds the messages about one hand-off and queues each on the rank's stream. Never waits."""

    def __init__(self, name: HandoffId, send: Send) -> None:
        self._name = handoff_to_proto(name)
        self._send = send

    def want_destination(self, tokens: int) -> None:
        """Ask for memory for the KV of `tokens` tokens and one slot."""
        wanted = handoff_pb2.DestinationWanted(**self._name, tokens=tokens)
        self._send(handoff_pb2.PrefillMessage(wanted=wanted))

    def progress(self, computed_tokens: int) -> None:
        """Report the prompt tokens that are computed."""
        progress = handoff_pb2.Progress(**self._name, computed_tokens=computed_tokens)
        self._send(handoff_pb2.PrefillMessage(progress=progress))

    def scores(self, event: PromptScored) -> None:
        """Send the log probabilities of prompt tokens."""
        logprobs = prompt_logprobs_to_proto(event.scores)
        scores = handoff_pb2.PromptScores(**self._name, logprobs=logprobs)
        self._send(handoff_pb2.PrefillMessage(scores=scores))

    def first_token(self, first: handoff_pb2.FirstToken) -> None:
        self._send(handoff_pb2.PrefillMessage(first_token=first))

    def moving(self, ticket: WrittenTicket, under_way: bool, segments: int) -> None:
        """Tell the rank to look for bytes that the channel writes without the rank's help.

        under_way: posts are under way. segments: posted so far.
        """
        moving = handoff_pb2.Moving(
            **self._name,
            **ticket_to_proto(ticket.ticket),
            under_way=under_way,
            segments=segments,
        )
        self._send(handoff_pb2.PrefillMessage(moving=moving))

    def done(self, done: handoff_pb2.Done) -> None:
        self._send(handoff_pb2.PrefillMessage(done=done))

    def drained(self, ticket: WrittenTicket) -> None:
        """Prove to the rank that nothing more is written under `ticket`."""
        drained = handoff_pb2.Drained(**self._name, **ticket_to_proto(ticket.ticket))
        self._send(handoff_pb2.PrefillMessage(drained=drained))

    def failed(self, error: common_pb2.Error) -> None:
        failed = handoff_pb2.Failed(**self._name, error=error)
        self._send(handoff_pb2.PrefillMessage(failed=failed))
