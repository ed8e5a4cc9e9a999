"""A hand-off into a rank without engine and stream: when it is complete, and when it is a loss."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from transfer.layouts import PAGES, SLOTS, Pools

from baton.core.state_ref import StateRef
from baton.decode.grants import GrantRequest
from baton.decode.incoming import IncomingHandoff
from baton.decode.rank_resources import RankResources
from baton.engine.request.request import Reservation
from baton.proto import common_pb2, handoff_pb2
from baton.transfer.handoff import Handoff, HandoffState
from baton.transfer.memory.segments import cut_kv, cut_state, nbytes
from baton.transfer.tickets import Received, Ticket, TicketTable

S = HandoffState
KEY = ("r", 257)


class FakeLink:
    """A stream to a prefill worker, whose messages the test makes."""

    one_sided = False
    one_way_s = 0.0

    def __init__(self) -> None:
        self.sent: list[handoff_pb2.DecodeMessage] = []
        self.ended: list[Ticket] = []  # whose bytes are not looked for any more
        self.on_message: Callable[[handoff_pb2.PrefillMessage], None] | None = None

    def open(self, key: Any, request: Any, on_message: Any, on_lost: Any) -> None:
        assert key == KEY
        self.on_message = on_message

    def send(self, message: handoff_pb2.DecodeMessage) -> None:
        self.sent.append(message)

    def arrived(self, ticket: Ticket) -> None:
        self.ended.append(ticket)

    def forget(self, key: Any) -> None:
        assert key == KEY
        self.on_message = None


class FakeGrants:
    """Memory that is granted when the test says so."""

    def __init__(self) -> None:
        self.asked: list[GrantRequest] = []
        self.given_back: list[Reservation] = []

    def ask(self, asked: GrantRequest) -> None:
        self.asked.append(asked)

    def withdraw(self, engine_id: str) -> None:
        assert engine_id == "r.257"

    def give_back(self, reservation: Reservation) -> None:
        self.given_back.append(reservation)


class Side:
    """The rank's side of one hand-off, up to its ticket, and the request that owns it."""

    def __init__(self, tokens: int) -> None:
        self.pools = Pools()
        self.tickets = TicketTable(self.pools.memory, 40)
        self.link, self.grants = FakeLink(), FakeGrants()
        self.moves: list[HandoffState] = []
        self.completed: list[Reservation] = []
        self.failed: list[common_pb2.Error] = []
        self.arrived: list[list[int]] = []
        handoffs = SimpleNamespace(
            open=lambda name: Handoff(name, lambda h, source, to, why: self.moves.append(to)),
            close=lambda handoff: None,
        )
        context: Any = SimpleNamespace(handoffs=handoffs, worker_id="d0")
        returner: Any = SimpleNamespace(
            arrived=lambda prefix, link: self.arrived.append(list(prefix.token_ids))
        )
        grants: Any = self.grants
        quarantine: Any = None
        link: Any = self.link
        rank = RankResources(context, self.tickets, grants, returner, quarantine)
        self.request = handoff_pb2.PrefillRequest(
            request_id="r", attempt=257, prompt_ids=range(tokens)
        )
        self.handoff = IncomingHandoff(rank, link, self.request, "r.257", self)
        self.handoff.begin()
        wanted = handoff_pb2.DestinationWanted(request_id="r", attempt=257, tokens=tokens)
        self.say(wanted=wanted)
        pages = tuple(range(1, 1 + -(-tokens // PAGES.page_size)))
        self.reservation = Reservation("r.257", StateRef(1, pages, tokens))
        self.grants.asked[0].on_granted(self.reservation)
        (message,) = self.link.sent
        destination = message.destination
        self.ticket: Ticket = self.tickets._entries[destination.ticket_id].ticket
        assert destination.generation == self.ticket.name.generation

    def say(self, **kind: Any) -> None:
        """Send a message of the prefill worker."""
        assert self.link.on_message is not None
        self.link.on_message(handoff_pb2.PrefillMessage(**kind))

    def write_all(self) -> Received:
        """Write every byte of the hand-off; return the counts."""
        sent = Received(0, 0, 0)
        for segment in (*cut_kv(PAGES, 0, self.ticket.target.tokens, 64), *cut_state(SLOTS, 64)):
            payload = memoryview(bytes(nbytes(segment, PAGES)))
            self.tickets.apply(self.ticket.claim, segment, payload)
            sent = sent.plus(segment.kind, len(payload))
        return sent

    def done(self, sent: Received, generation: int) -> None:
        done = handoff_pb2.Done(
            request_id="r",
            attempt=257,
            ticket_id=self.ticket.name.number,
            generation=generation,
            segments=sent.segments,
            bytes_state=sent.bytes_state,
            bytes_kv=sent.bytes_kv,
            cached_state=2,
        )
        self.say(done=done)

    # The owner's side.

    def on_first_token(self, first: handoff_pb2.FirstToken) -> None: ...

    def on_scores(self, logprobs: common_pb2.PromptLogprobs) -> None: ...

    def on_complete(self, reservation: Reservation, layers_ended_s: float) -> None:
        self.completed.append(reservation)

    def on_failed(self, error: common_pb2.Error) -> None:
        self.failed.append(error)


@pytest.mark.parametrize("first", ["done", "bytes"])
async def test_done_and_every_byte_complete_a_hand_off_in_either_order(
    first: str, seeded: random.Random
) -> None:
    tokens = seeded.randint(3, 50)
    side, twin = Side(tokens), Side(tokens)
    sent = twin.write_all()
    if first == "done":
        side.done(sent, side.ticket.name.generation)
        assert not side.completed
        side.write_all()
    else:
        side.write_all()
        assert not side.completed
        side.done(sent, side.ticket.name.generation)
    assert side.completed == [side.reservation]
    assert side.moves == [S.SCHEDULED, S.RESERVED, S.WRITING, S.COMPLETE]
    assert not side.failed and not side.grants.given_back
    assert side.arrived == [[0, 1]]
    assert side.link.ended == [side.ticket]
    assert len(side.tickets) == 0
    assert side.link.on_message is None


@pytest.mark.parametrize("wrong", ["segments", "bytes_state", "bytes_kv", "generation"])
async def test_a_done_of_other_counts_or_another_generation_is_a_loss_of_data(
    wrong: str, seeded: random.Random
) -> None:
    side = Side(seeded.randint(3, 50))
    sent = side.write_all()
    generation = side.ticket.name.generation
    by = seeded.choice([-1, 1])
    counts = {name: getattr(sent, name) for name in ("segments", "bytes_state", "bytes_kv")}
    if wrong == "generation":
        generation += by
    else:
        counts[wrong] += by
    side.done(Received(**counts), generation)
    assert not side.completed
    (error,) = side.failed
    assert (error.code, error.retryable) == (common_pb2.DATA_LOSS, True)
    assert side.moves[-1] is S.FAILED
    assert side.grants.given_back == [side.reservation]
    assert len(side.tickets) == 0
    cancel = side.link.sent[-1].cancel
    assert (cancel.ticket_id, cancel.generation) == side.ticket.name


async def test_a_prefill_that_wants_room_for_another_prompt_is_refused() -> None:
    side = Side(8)
    side.say(wanted=handoff_pb2.DestinationWanted(request_id="r", attempt=257, tokens=9))
    (error,) = side.failed
    assert "room for 9 tokens; the prompt has 8" in error.message
    assert side.grants.given_back == [side.reservation]
