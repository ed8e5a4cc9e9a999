"""Tests of which part of a rank's messages reaches the client."""

import asyncio
import random
from typing import Any

import pytest

from baton.api.admission.defaults import MAX_JOINED_TOKENS
from baton.api.backend import TokenEvent
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.finish import Finished, FinishReason
from baton.proto import common_pb2
from baton.proto.worker_pb2 import RequestTokens
from baton.router.sessions.answer_stream import AnswerStream


def stream() -> AnswerStream:
    return AnswerStream("r", attempt=2, clock=lambda: 5.0)


def part(first: int, ids: list[int], attempt: int = 2, **more: Any) -> RequestTokens:
    return RequestTokens(request_id="r", attempt=attempt, first_index=first, token_ids=ids, **more)


async def drain(answer: AnswerStream) -> tuple[list[int], Finished]:
    ids: list[int] = []
    while isinstance(event := await answer.next(), TokenEvent):
        assert event.first_index == len(ids)
        ids += event.token_ids
    return ids, event


DONE = common_pb2.Finished(reason=common_pb2.STOP, cut_chars=3)


async def test_tokens_sent_again_in_any_overlap_are_given_once() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ids = [rng.randrange(100) for _ in range(50)]
    answer = stream()
    while (known := answer.next_index) < len(ids):
        first = rng.randint(0, known)
        answer.feed(part(first, ids[first : rng.randint(first, len(ids))]))
    answer.feed(part(len(ids), [], finished=DONE))
    got, finished = await drain(answer)
    assert got == ids
    assert (finished.end.reason, finished.end.cut_chars) == (FinishReason.STOP, 3)
    assert answer.rank_done


async def test_a_whole_answer_that_lies_unread_is_joined_in_pieces() -> None:
    """Joined at once, each of its tokens would cost a copy of all before it, on every client's
    loop."""
    answer = stream()
    for i in range(3 * MAX_JOINED_TOKENS + 5):
        answer.feed(part(i, [i]))
    answer.feed(part(3 * MAX_JOINED_TOKENS + 5, [], finished=DONE))
    sizes: list[int] = []
    while isinstance(event := await answer.next(), TokenEvent):
        assert event.first_index == event.token_ids[0] == sum(sizes)
        sizes.append(len(event.token_ids))
    assert sizes == [MAX_JOINED_TOKENS] * 3 + [5]


async def test_what_the_reader_has_not_taken_yet_comes_as_one() -> None:
    answer = stream()
    for i in range(5):
        answer.feed(part(i, [10 + i]))
    event = await answer.next()
    assert event == TokenEvent(0, (10, 11, 12, 13, 14))
    answer.feed(part(5, [15]))
    assert await answer.next() == TokenEvent(5, (15,))


async def test_a_reader_that_waits_is_woken() -> None:
    answer = stream()
    waiting = asyncio.create_task(answer.next())
    await asyncio.sleep(0)
    answer.feed(part(0, [1]))
    assert await asyncio.wait_for(waiting, 20) == TokenEvent(0, (1,))


async def test_logprobs_stay_with_their_tokens_when_the_front_is_cut_off() -> None:
    scores = [common_pb2.TokenLogprob(token_id=i, logprob=-i) for i in (4, 5, 6)]
    answer = stream()
    answer.feed(part(0, [4, 5], logprobs=scores[:2]))
    answer.feed(part(1, [5, 6], logprobs=scores[1:]))
    event = await answer.next()
    assert isinstance(event, TokenEvent)
    assert event.token_ids == (4, 5, 6)
    assert [entry.token_id for entry in event.logprobs] == [4, 5, 6]


@pytest.mark.parametrize("overlap", [0, 1, 2, 3])
@pytest.mark.parametrize("with_logprobs", [False, True])
async def test_tokens_that_were_given_before_are_dropped_from_the_front(
    overlap: int, with_logprobs: bool
) -> None:
    ids = [7, 8, 9, 10, 11]
    scores = [common_pb2.TokenLogprob(token_id=i, logprob=-i) for i in ids]

    def piece(first: int, end: int) -> RequestTokens:
        logprobs = scores[first:end] if with_logprobs else []
        return part(first, ids[first:end], logprobs=logprobs)

    answer = stream()
    answer.feed(piece(0, 3))
    first = await answer.next()
    answer.feed(piece(3 - overlap, 5))
    second = await answer.next()
    assert isinstance(first, TokenEvent) and isinstance(second, TokenEvent)
    assert (first.first_index, first.token_ids) == (0, (7, 8, 9))
    assert (second.first_index, second.token_ids) == (3, (10, 11))
    scored = [entry.token_id for entry in second.logprobs]
    assert scored == ([10, 11] if with_logprobs else [])
    assert answer.next_index == 5


async def test_prompt_logprobs_sent_again_are_given_once() -> None:
    def chunk(start: int, count: int) -> common_pb2.PromptLogprobs:
        tokens = [common_pb2.TokenLogprob(token_id=start + i) for i in range(count)]
        return common_pb2.PromptLogprobs(start=start, tokens=tokens)

    answer = stream()
    for start, count in ((2, 3), (2, 3), (3, 4)):
        answer.feed(part(0, [], prompt_logprobs=chunk(start, count)))
    answer.feed(part(0, [], finished=DONE))
    positions: list[int] = []
    while isinstance(event := await answer.next(), TokenEvent):
        assert event.prompt_logprobs is not None
        positions += [entry.token_id for entry in event.prompt_logprobs.tokens]
        assert event.prompt_logprobs.start == positions[-len(event.prompt_logprobs.tokens)]
    assert positions == [2, 3, 4, 5, 6]


async def test_another_attempts_tokens_are_ignored() -> None:
    answer = stream()
    answer.feed(part(0, [1], attempt=1))
    answer.feed(part(0, [2]))
    answer.feed(part(1, [], attempt=3, finished=DONE))
    answer.feed(part(1, [], finished=DONE))
    assert (await drain(answer))[0] == [2]


async def test_a_gap_ends_the_answer_rather_than_losing_a_token() -> None:
    answer = stream()
    answer.feed(part(0, [1]))
    answer.feed(part(2, [3]))
    answer.feed(part(1, [2]))
    ids, finished = await drain(answer)
    assert ids == [1]
    assert finished.error is not None and finished.error.code is ErrorCode.DATA_LOSS
    assert (finished.error.expected, finished.error.actual) == ("output index 1 next", "2")
    assert not answer.rank_done  # so that it is cancelled there


async def test_it_ends_once_and_the_first_end_counts() -> None:
    answer = stream()
    answer.feed(part(0, [1]))
    answer.fail(ApiError(ErrorCode.CANCELLED, "enough"), FinishReason.ABORT)
    answer.fail(ApiError(ErrorCode.INTERNAL, "too late"))
    answer.feed(part(1, [2], finished=DONE))
    ids, finished = await drain(answer)
    assert ids == [1]
    assert finished.end.reason is FinishReason.ABORT
    assert finished.usage.completion_tokens == 1
