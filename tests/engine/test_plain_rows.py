"""Rows that are planned the short way: when, and what is noticed if it were too long."""

import random

import pytest
from engine.engines import greedy, make_engine, run, tokens_of
from engine.hash_model import VOCAB, HashModel, expected_tokens
from engine.test_sampling import naive

from baton.engine.engine import Engine
from baton.engine.request.draw import Draw
from baton.engine.request.request import Request, RequestLengths, RequestSpec
from baton.engine.schedule.row_planner import RowPlanner


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first token of every decode row that is planned the long way."""
    found: list[int] = []
    decode_row = RowPlanner.decode_row

    def noted(self: RowPlanner, request: Request) -> object:
        found.append(request.lengths.computed)
        return decode_row(self, request)

    monkeypatch.setattr(RowPlanner, "decode_row", noted)
    return found


def answer(engine: Engine, spec: RequestSpec) -> list[int]:
    engine.submit(spec)
    return tokens_of(run(engine), spec.request_id)


def test_the_long_way_is_for_snapshots_what_follows_them_and_the_last_token(
    long_way: list[int],
) -> None:
    """Pages have 8 tokens, and the token before each multiple of 16 takes a snapshot."""
    prompt = (5,) * 3
    found = answer(make_engine(), RequestSpec("a", prompt, greedy(40)))
    assert found == expected_tokens(HashModel(), prompt, 40)
    assert long_way == [3, 15, 16, 31, 32, 41]


def test_without_snapshots_the_long_way_is_for_the_first_row_and_the_last(
    long_way: list[int],
) -> None:
    """New pages are taken on the short way."""
    answer(make_engine(prefix_caching=False), RequestSpec("a", (5,) * 3, greedy(40)))
    assert long_way == [3, 41]


def test_a_minimum_length_ends_in_the_middle_of_a_page(
    seeded: random.Random, long_way: list[int]
) -> None:
    sampling = greedy(20, min_tokens=4, stop_token_ids=tuple(range(0, VOCAB, 3)))
    prompt = tuple(seeded.randrange(VOCAB) for _ in range(9))
    found = answer(make_engine(), RequestSpec("a", prompt, sampling))
    assert found == naive(HashModel(), prompt, sampling)
    # Token 0 comes with the prompt; the rows of tokens 1 to 3 rule the stop tokens out.
    assert long_way[:1] == [9] and (len(found) <= 5 or 12 in long_way)


@pytest.mark.parametrize("late", [1, 3])
def test_plain_rows_past_their_pages_are_noticed(
    monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    plain_end = RowPlanner._plain_end

    def too_long(self: RowPlanner, request: Request, lengths: RequestLengths, draw: Draw) -> int:
        return plain_end(self, request, lengths, draw) + late

    monkeypatch.setattr(RowPlanner, "_plain_end", too_long)
    engine = make_engine(prefix_caching=False)
    engine.submit(RequestSpec("a", (5,) * 3, greedy(40)))
    with pytest.raises(AssertionError, match=r"padding page|has computed"):
        run(engine)
