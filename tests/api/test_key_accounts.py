"""The caps of a key: rates, tokens, answers at once, and what changes of the file leave alone."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from baton.api.access.key_accounts import RESERVED_TOKENS, KeyAccounts, KeyCall
from baton.api.access.keys import Key, KeyScope
from baton.api.access.rate import MinuteRate
from baton.api.backend import GenerateRequest
from baton.api.requests import new_request_id
from baton.core.error_codes import ErrorCode
from baton.core.errors import ApiError
from baton.core.sampling_params import SamplingParams

KEY = Key("ada", "0" * 64, frozenset({KeyScope.INFER}))


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def refused() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def accounts(clock: Clock, refused: list[tuple[str, str]]) -> KeyAccounts:
    return KeyAccounts(clock, lambda key, cap: refused.append((key, cap)))


def answers(prompt: int, output: int, n: int = 1, priority: int = 0) -> list[GenerateRequest]:
    sampling = SamplingParams(max_tokens=output)
    ids = tuple(range(prompt))
    return [GenerateRequest(new_request_id(), ids, sampling, priority=priority) for _ in range(n)]


def code_of(call: KeyCall, wanted: Sequence[GenerateRequest]) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        call.admit(wanted)
    return error.value.code


def test_a_rate_fills_up_steadily_to_one_minutes_units(clock: Clock) -> None:
    rate = MinuteRate(60, clock)
    rate.use(60)
    assert (rate.left, rate.wait_s(1), rate.full_s) == (0, 1, 60)
    clock.now += 1.5
    assert (rate.left, rate.wait_s(1), rate.wait_s(2)) == (1, 0, 0.5)
    clock.now += 1000
    assert rate.left == 60
    rate.use(100)
    assert (rate.left, rate.wait_s(1)) == (0, 41)
    rate.use(-1000)
    assert rate.left == 60


def test_servers_that_share_a_rate_fill_up_by_their_parts(clock: Clock) -> None:
    rate = MinuteRate(60, clock, parts=3)
    assert rate.left == 60, "a whole minute's, so that no long prompt is refused for good"
    rate.use(60)
    assert (rate.wait_s(1), rate.full_s) == (3, 180)
    clock.now += 60
    assert rate.left == 20


def test_servers_that_share_a_cap_of_answers_have_a_part_each(clock: Clock) -> None:
    accounts = KeyAccounts(clock, parts=3)
    key = replace(KEY, concurrent_requests=4)
    with accounts.call(key) as call:
        call.admit(answers(1, 1, n=2))
        assert code_of(call, answers(1, 1)) is ErrorCode.OVERLOADED
    with accounts.call(key) as call:
        call.admit(answers(1, 1, n=4))
        assert code_of(call, answers(1, 1, n=5)) is ErrorCode.PERMISSION_DENIED


def test_requests_beyond_the_rate_hear_when_to_come_back(
    accounts: KeyAccounts, clock: Clock, refused: list[tuple[str, str]]
) -> None:
    with accounts.call(replace(KEY, requests_per_minute=6)) as call:
        for _ in range(6):
            call.begin()
        with pytest.raises(ApiError, match="6 requests a minute") as error:
            call.begin()
        assert error.value.code is ErrorCode.OVERLOADED
        assert error.value.retry_after_s == pytest.approx(10)
        assert refused == [("ada", "requests_per_minute")]
        clock.now += 10
        call.begin()


def test_tokens_are_reserved_counted_as_used_and_given_back(
    accounts: KeyAccounts, clock: Clock
) -> None:
    key = replace(KEY, tokens_per_minute=1000)
    with accounts.call(key) as call:
        first = answers(100, 400)
        call.admit(first)
        assert call.headers()["x-ratelimit-remaining-tokens"] == "500"
        with pytest.raises(ApiError, match="has 500 left; this request may use 600") as error:
            call.admit(answers(200, 400))
        assert error.value.retry_after_s == pytest.approx(6)
        for _ in range(30):
            accounts.used(first[0].request_id, 1)
        accounts.settle(first[0].request_id)
        assert call.headers()["x-ratelimit-remaining-tokens"] == "870"
        accounts.settle(first[0].request_id)
        assert call.headers()["x-ratelimit-remaining-tokens"] == "870"
        call.admit(answers(200, 400))


def test_an_answer_without_a_token_costs_nothing(accounts: KeyAccounts) -> None:
    key = replace(KEY, tokens_per_minute=1000)
    with accounts.call(key) as call:
        call.admit(answers(100, 400, n=2))
        assert call.headers()["x-ratelimit-remaining-tokens"] == "100"
    assert call.headers()["x-ratelimit-remaining-tokens"] == "1000"


def test_a_long_answer_is_counted_beyond_its_reserve(accounts: KeyAccounts, clock: Clock) -> None:
    key = replace(KEY, tokens_per_minute=2000)
    with accounts.call(key) as call:
        (long,) = answers(10, 100_000)
        call.admit([long])
        assert call.headers()["x-ratelimit-remaining-tokens"] == str(1990 - RESERVED_TOKENS)
        accounts.used(long.request_id, 3000)
        assert code_of(call, answers(1, 1)) is ErrorCode.OVERLOADED
    clock.now += 30
    with accounts.call(key) as call:
        assert code_of(call, answers(1, 1)) is ErrorCode.OVERLOADED
        clock.now += 1
        call.admit(answers(1, 1))


def test_a_prompt_counts_once_however_many_answers_it_has(accounts: KeyAccounts) -> None:
    key = replace(KEY, tokens_per_minute=1000)
    with accounts.call(key) as call:
        some = answers(100, 10, n=3)
        call.admit(some)
        for each in some:
            accounts.used(each.request_id, 10)
    assert call.headers()["x-ratelimit-remaining-tokens"] == "870"


def test_answers_that_did_not_begin_give_back_no_more_than_they_reserved(
    accounts: KeyAccounts,
) -> None:
    with accounts.call(replace(KEY, tokens_per_minute=1000)) as call:
        some = answers(100, 10, n=3)
        call.admit(some)
        accounts.used(some[0].request_id, 10)
    assert call.headers()["x-ratelimit-remaining-tokens"] == "890"


def test_what_no_wait_can_help_is_refused_for_good(
    accounts: KeyAccounts, refused: list[tuple[str, str]]
) -> None:
    key = replace(KEY, tokens_per_minute=50, concurrent_requests=2, max_n=3, max_priority=5)
    with accounts.call(key) as call:
        assert code_of(call, answers(51, 1)) is ErrorCode.TOO_LARGE
        assert code_of(call, answers(1, 1, n=4)) is ErrorCode.PERMISSION_DENIED
        assert code_of(call, answers(1, 1, n=3)) is ErrorCode.PERMISSION_DENIED
        assert code_of(call, answers(1, 1, priority=6)) is ErrorCode.PERMISSION_DENIED
        call.admit(answers(1, 1_000_000, n=2, priority=5))
    assert [cap for _, cap in refused] == [
        "tokens_per_minute", "max_n", "concurrent_requests", "max_priority",
    ]  # fmt: skip


def test_answers_at_once_are_bounded_until_one_ends(accounts: KeyAccounts) -> None:
    key = replace(KEY, concurrent_requests=2)
    with accounts.call(key) as one, accounts.call(key) as two:
        first = answers(1, 1, n=2)
        one.admit(first)
        assert code_of(two, answers(1, 1)) is ErrorCode.OVERLOADED
        accounts.settle(first[0].request_id)
        two.admit(answers(1, 1))
        assert code_of(two, answers(1, 1)) is ErrorCode.OVERLOADED
    with accounts.call(key) as three:
        three.admit(answers(1, 1, n=2))


def test_a_change_of_the_file_keeps_what_was_used(accounts: KeyAccounts) -> None:
    key = replace(KEY, requests_per_minute=10, tokens_per_minute=100, concurrent_requests=1)
    with accounts.call(key) as call:
        call.begin()
        call.admit(answers(40, 20))
        changed = replace(key, sha256="1" * 64, requests_per_minute=5, tokens_per_minute=200)
        with accounts.call(changed) as other:
            assert other.headers()["x-ratelimit-remaining-requests"] == "4"
            assert other.headers()["x-ratelimit-remaining-tokens"] == "140"
            assert code_of(other, answers(1, 1)) is ErrorCode.OVERLOADED
    with accounts.call(replace(key, tokens_per_minute=None)) as free:
        assert "x-ratelimit-limit-tokens" not in free.headers()


def test_two_keys_have_accounts_of_their_own(accounts: KeyAccounts) -> None:
    key = replace(KEY, concurrent_requests=1)
    with accounts.call(key) as one, accounts.call(replace(key, name="ben")) as two:
        one.admit(answers(1, 1))
        two.admit(answers(1, 1))
