"""Tests of which form a decoded token takes on its way to the router."""

from typing import cast

import pytest

from baton.core.logprobs import TokenLogprob
from baton.core.role import Role
from baton.decode.answer import Answer, Outgoing
from baton.decode.request_timings import RequestTimings
from baton.engine.request.events import TokenSampled
from baton.proto import common_pb2, worker_pb2
from baton.worker.metrics import WorkerMetrics


class Sent:
    """A session that records what it would send, in order."""

    def __init__(self) -> None:
        self.found: list[worker_pb2.RequestTokens | tuple[int, int, int]] = []

    def add(self) -> worker_pb2.RequestTokens:
        part = worker_pb2.RequestTokens()
        self.found.append(part)
        return part

    def add_token(self, handle: int, index: int, token_id: int) -> None:
        self.found.append((handle, index, token_id))


@pytest.fixture
def sent() -> Sent:
    return Sent()


def answer_to(start: worker_pb2.StartRequest, sent: Sent) -> Answer:
    return Answer(
        start, cast(Outgoing, sent), RequestTimings(WorkerMetrics("decode-0", Role.DECODE))
    )


def test_a_plain_token_goes_by_its_handle_and_the_end_follows_it(sent: Sent) -> None:
    start = worker_pb2.StartRequest(request_id="a", attempt=2, output_ids=[4, 5], handle=9)
    answer = answer_to(start, sent)
    answer.add_sampled(TokenSampled("a.2", 2, 70, None))
    answer.add_sampled(TokenSampled("a.2", 3, 71, None))
    answer.end(common_pb2.Finished(reason=common_pb2.LENGTH))
    *tokens, end = sent.found
    assert tokens == [(9, 2, 70), (9, 3, 71)]
    assert isinstance(end, worker_pb2.RequestTokens)
    assert (end.request_id, end.attempt, end.first_index) == ("a", 2, 4)
    assert end.finished.reason == common_pb2.LENGTH
    assert answer.token_ids == [4, 5, 70, 71]


def test_a_scored_token_and_one_for_an_older_router_are_parts(sent: Sent) -> None:
    scored = TokenSampled("a.1", 0, 70, TokenLogprob(70, -0.5))
    answer_to(worker_pb2.StartRequest(request_id="a", attempt=1, handle=9), sent).add_sampled(
        scored
    )
    plain = TokenSampled("b.1", 0, 71, None)
    answer_to(worker_pb2.StartRequest(request_id="b", attempt=1), sent).add_sampled(plain)
    first, second = sent.found
    assert isinstance(first, worker_pb2.RequestTokens)
    assert isinstance(second, worker_pb2.RequestTokens)
    assert (first.request_id, list(first.token_ids), len(first.logprobs)) == ("a", [70], 1)
    assert (second.request_id, list(second.token_ids), len(second.logprobs)) == ("b", [71], 0)
