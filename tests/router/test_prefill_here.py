"""The choice whether a rank computes a prompt itself, by measured speeds."""

import pytest

from baton.proto.worker_pb2 import WorkerStatus
from baton.router.placement.prefill_here import GAIN, MOST_S, PrefillHere, PromptAt, Verdict

LEARNT = PrefillHere(None)
# 10 prompt tokens in a millisecond; beside requests that decode, 32 in 3.2 ms and a step of 3.2 ms.
STATUS = WorkerStatus(max_running=4, prompt_token_us=100, decode_step_us=3200, beside_decode=32)
THERE = PromptAt(STATUS, queued=0, tokens=100, load=0)
IDLE = PromptAt(STATUS, queued=0, tokens=100, load=0)
DECODING = IDLE._replace(load=3)


def test_what_no_prefill_worker_has_to_wait_for_is_left_to_it() -> None:
    assert not LEARNT.wanted(THERE, IDLE)
    assert LEARNT.wanted(THERE, IDLE._replace(tokens=79)), "it has the rest cached"
    assert not LEARNT.wanted(THERE, IDLE._replace(tokens=80))


def test_a_rank_that_decodes_takes_what_would_wait_long_enough() -> None:
    """Each token takes it twice as long then."""
    for queued, wanted in ((150, False), (151, True)):
        assert LEARNT.wanted(THERE._replace(queued=queued), DECODING) is wanted
    assert LEARNT.wanted(THERE._replace(queued=26), IDLE)
    assert not LEARNT.wanted(THERE._replace(queued=24), IDLE)


def test_a_slow_link_counts_as_time_of_the_prefill_worker() -> None:
    for link_s, wanted in ((0.002, False), (0.003, True)):  # 10 ms here, 10 ms and these there
        assert LEARNT.wanted(THERE._replace(link_s=link_s), IDLE) is wanted


def test_a_rank_without_a_free_place_or_with_another_prompt_takes_none() -> None:
    there = THERE._replace(queued=10_000)
    assert LEARNT.wanted(there, DECODING)
    assert not LEARNT.wanted(there, DECODING._replace(load=4))
    assert not LEARNT.wanted(there, DECODING._replace(queued=1))


def test_a_long_prompt_is_left_to_prefill_workers_however_long_it_waits() -> None:
    there = THERE._replace(queued=1_000_000)
    most = round(MOST_S / 200e-6)
    assert LEARNT.wanted(there, DECODING._replace(tokens=most))
    assert not LEARNT.wanted(there, DECODING._replace(tokens=most + 1))


def test_a_rank_that_has_computed_none_is_taken_to_be_as_fast_as_the_prefill_worker() -> None:
    here = IDLE._replace(status=WorkerStatus(max_running=4))
    assert LEARNT.wanted(THERE._replace(queued=26), here)
    assert not LEARNT.wanted(THERE._replace(queued=24), here)
    unknown = THERE._replace(queued=10_000, status=WorkerStatus())
    assert not LEARNT.wanted(unknown, here), "nobody knows how long it would wait"


@pytest.mark.parametrize("load", [0, 3])
@pytest.mark.parametrize("queued", [0, 40, 900, 10_000_000])
def test_the_threshold_is_the_longest_prompt_that_would_be_taken(load: int, queued: int) -> None:
    here = IDLE._replace(load=load, tokens=0)
    found = LEARNT.threshold(THERE._replace(queued=queued, tokens=0), here)
    for tokens, wanted in ((found - 1, True), (found + 2, False)):
        there = THERE._replace(queued=queued, tokens=tokens)
        if tokens > 0:
            assert LEARNT.wanted(there, here._replace(tokens=tokens)) is wanted
    assert (found == 0) is (queued == 0)
    assert LEARNT.threshold(None, here) == 0
    assert LEARNT.threshold(THERE._replace(queued=queued), here._replace(load=4)) == 0


def test_a_fixed_threshold_is_what_it_says() -> None:
    assert PrefillHere(70).threshold(None, IDLE) == 70
    assert (PrefillHere(70).name, PrefillHere().name, LEARNT.name) == (70, "off", "auto")
    assert GAIN < 1


@pytest.mark.parametrize(
    ("rule", "there", "here", "verdict"),
    [
        (PrefillHere(0), THERE, IDLE, Verdict.OFF),
        (LEARNT, THERE, IDLE._replace(queued=1), Verdict.PROMPTS_WAIT),
        (PrefillHere(99), THERE, IDLE, Verdict.LONG),
        (PrefillHere(100), THERE, IDLE, Verdict.FEWER_THERE),
        (PrefillHere(100), THERE._replace(queued=1), IDLE, Verdict.HERE),
        (LEARNT, THERE, IDLE._replace(load=4), Verdict.FULL),
        (LEARNT, THERE._replace(status=WorkerStatus()), IDLE._replace(status=WorkerStatus(
            max_running=4)), Verdict.UNKNOWN),
        (LEARNT, THERE._replace(queued=10**6), IDLE._replace(tokens=10_001), Verdict.BOUND),
        (LEARNT, THERE, IDLE, Verdict.NO_GAIN),
        (LEARNT, THERE._replace(queued=26), IDLE, Verdict.HERE),
    ],
)  # fmt: skip
def test_each_choice_has_its_reason(
    rule: PrefillHere, there: PromptAt, here: PromptAt, verdict: Verdict
) -> None:
    assert rule.verdict(there, here) is verdict
    assert rule.wanted(there, here) is (verdict is Verdict.HERE)
