"""The router's metrics: by how much each call makes which series grow."""

from collections.abc import Callable
from typing import Any

from samples import grown, samples

from baton.core.finish import Timings, Usage
from baton.router.metrics import RouterMetrics
from baton.router.request_times import BrokenOff

T = "baton_router_"


def effect(call: Callable[[RouterMetrics], Any]) -> dict[str, float]:
    metrics = RouterMetrics()
    before = samples(metrics.registry)
    call(metrics)
    found = grown(before, samples(metrics.registry))
    assert all(name.startswith(T) for name in found)
    return {name.removeprefix(T): value for name, value in found.items()}


def test_the_end_of_a_request_counts_once_for_the_router_and_once_for_its_key() -> None:
    assert effect(lambda m: m.ended("stop", None)) == {"requests_total{outcome=stop}": 1}
    assert effect(lambda m: m.ended("length", "alice")) == {
        "requests_total{outcome=length}": 1,
        "key_requests_total{key=alice,outcome=length}": 1,
    }


def test_a_finished_request_counts_its_tokens_and_each_of_its_durations_in_seconds() -> None:
    timings = Timings(
        router_queue_us=1_000_000,
        prefill_queue_us=2_000_000,
        prefill_us=3_000_000,
        delivery_us=4_000_000,
        network_us=5_000_000,
        transfer_us=6_000_000,
        decode_wait_us=7_000_000,
        first_decode_step_us=8_000_000,
        ttft_us=15_000_000,
        e2e_us=40_000_000,
    )
    parts = {"router_queue": 1, "prefill_queue": 2, "prefill": 3, "delivery": 4, "network": 5}
    seconds = {"transfer": 6, "decode_wait": 7, "first_decode_step": 8}
    expected: dict[str, float] = {
        "tokens_total{kind=prompt}": 20,
        "tokens_total{kind=output}": 7,
        "cached_tokens_total": 12,
        "cached_host_tokens_total": 5,
        "key_tokens_total{key=alice,kind=prompt}": 20,
        "key_tokens_total{key=alice,kind=output}": 7,
        "key_cached_tokens_total{key=alice}": 12,
        "ttft_seconds_sum": 15,
        "ttft_seconds_count": 1,
        "e2e_seconds_sum": 40,
        "e2e_seconds_count": 1,
    }
    for name, found in (("ttft_part", parts), ("second_token_part", seconds)):
        for part, value in found.items():
            expected[f"{name}_seconds_sum{{part={part}}}"] = value
            expected[f"{name}_seconds_count{{part={part}}}"] = 1
    assert effect(lambda m: m.finished(Usage(20, 7, 12, 5), timings, "alice")) == expected


def test_a_request_that_was_broken_off_counts_what_there_was_of_it() -> None:
    begun = BrokenOff(Usage(20, 3), 2.0, 9.0)
    assert effect(lambda m: m.ended("cancelled", "alice", begun)) == {
        "requests_total{outcome=cancelled}": 1,
        "key_requests_total{key=alice,outcome=cancelled}": 1,
        "tokens_total{kind=prompt}": 20,
        "tokens_total{kind=output}": 3,
        "key_tokens_total{key=alice,kind=prompt}": 20,
        "key_tokens_total{key=alice,kind=output}": 3,
        "ttft_seconds_sum": 2,
        "ttft_seconds_count": 1,
        "e2e_seconds_sum": 9,
        "e2e_seconds_count": 1,
    }
    waited = BrokenOff(Usage(0, 0), None, 9.0)
    assert effect(lambda m: m.ended("deadline_exceeded", None, waited)) == {
        "requests_total{outcome=deadline_exceeded}": 1,
        "e2e_seconds_sum": 9,
        "e2e_seconds_count": 1,
    }


def test_an_answer_of_one_token_has_no_second_one() -> None:
    found = effect(lambda m: m.finished(Usage(20, 1, 0), Timings(ttft_us=5, e2e_us=9), None))
    assert not [name for name in found if name.startswith("second_token_part")]
    assert found["tokens_total{kind=output}"] == 1


def test_tokens_that_come_together_share_the_time_since_the_one_before() -> None:
    assert effect(lambda m: m.between_tokens(6.0, 3)) == {
        "itl_seconds_sum": 6,
        "itl_seconds_count": 3,
    }
    metrics = RouterMetrics()
    metrics.between_tokens(0.006, 3)
    buckets = {
        float(labels[0][1]): value
        for (name, labels), value in samples(metrics.registry).items()
        if name == T + "itl_seconds_bucket"
    }
    assert {bound: 3 if bound >= 0.002 else 0 for bound in buckets} == buckets


def test_a_dispatch_and_a_known_state_count() -> None:
    assert effect(lambda m: m.dispatched(2.5)) == {
        "queue_seconds_sum": 2.5,
        "queue_seconds_count": 1,
    }
    assert effect(lambda m: m.state_known(48)) == {
        "state_hits_total": 1,
        "state_hit_tokens_total": 48,
    }


def test_the_load_is_read_at_each_scrape_and_the_queue_is_what_exceeds_the_capacity() -> None:
    load = [3.0, 8.0]
    metrics = RouterMetrics()
    metrics.serves(lambda: load[0], lambda: load[1])
    for active, queued in ((3.0, 0.0), (11.0, 3.0)):
        load[0] = active
        found = samples(metrics.registry)
        assert found[(T + "requests_active", ())] == active
        assert found[(T + "requests_capacity", ())] == 8
        assert found[(T + "requests_queued", ())] == queued
