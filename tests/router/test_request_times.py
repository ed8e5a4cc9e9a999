"""The split of a request's time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.finish import Timings, Usage, altered
from baton.router.request_times import RequestTimes

durations = st.integers(0, 10_000_000)  # us


@given(durations, durations, durations, durations, durations, durations, st.floats(0, 1e6))
def test_the_parts_of_ttft_add_up_to_it(
    queue: int, wait: int, prefill: int, held: int, network: int, own: int, arrived: float
) -> None:
    times = RequestTimes(arrived)
    times.dispatched = arrived + queue / 1e6
    first_in = times.dispatched + (wait + prefill + held + network) / 1e6
    first_out = first_in + own / 1e6
    times.first_token(1, first_in, held, first_out)
    rank = Timings(prefill_queue_us=wait, prefill_us=prefill, transfer_us=9)
    seen = times.split(rank, 1, first_out + 1.0)
    parts = (
        seen.router_queue_us,
        seen.prefill_queue_us,
        seen.prefill_us,
        seen.delivery_us,
        seen.network_us,
    )
    # Each of three readings is rounded to a microsecond.
    assert abs(sum(parts) - seen.ttft_us) <= 3
    assert abs(seen.network_us - network) <= 3 and abs(seen.delivery_us - held - own) <= 1
    assert abs(seen.e2e_us - seen.ttft_us - 1_000_000) <= 2
    assert seen.transfer_us == 9


def test_an_answer_without_a_token_has_no_ttft() -> None:
    times = RequestTimes(1.0)
    times.dispatched = 1.25
    seen = times.split(Timings(), 1, 1.5)
    assert (seen.router_queue_us, seen.ttft_us, seen.network_us) == (250_000, 0, 0)
    assert seen.e2e_us == 500_000


def test_a_rank_that_claims_more_than_there_was_leaves_nothing_to_the_network() -> None:
    times = RequestTimes(0.0)
    times.dispatched = 0.0
    times.first_token(1, 0.009, 0, 0.01)
    seen = times.split(Timings(prefill_us=99_000), 1, 0.02)
    assert seen.network_us == 0 and seen.ttft_us == 10_000


def test_a_later_attempt_says_nothing_of_the_first_token() -> None:
    times = RequestTimes(0.0)
    times.dispatched = 0.0
    times.first_token(1, 0.009, 0, 0.01)
    seen = times.split(Timings(prefill_us=99_000, transfer_us=9), 2, 0.02)
    assert (seen.prefill_us, seen.network_us, seen.transfer_us) == (0, 9_000, 9)


@given(st.builds(Timings, *[durations] * 3), durations)
def test_an_altered_value_is_what_replace_makes(timings: Timings, us: int) -> None:
    assert altered(timings, e2e_us=us) == replace(timings, e2e_us=us)
    assert timings.e2e_us == 0
    with pytest.raises(TypeError, match=r"Usage has no \['tokens'\]"):
        altered(Usage(), prompt_tokens=1, tokens=us)
