"""The choice whether a rank computes a prompt itself, by what that costs and saves."""

import pytest

from baton.proto.worker_pb2 import WorkerStatus
from baton.router.metrics import RouterMetrics
from baton.router.placement.decision import Decision
from baton.router.placement.prefill_here import NO_LIMIT, PrefillHere, PromptAt, Verdict, sum_of

LEARNT = PrefillHere(None)
# 10 prompt tokens in a millisecond; beside requests that decode, 32 in 3.2 ms and a step of 3.2 ms.
STATUS = WorkerStatus(max_running=4, prompt_token_us=100, decode_step_us=3200, beside_decode=32)
THERE = PromptAt(STATUS, queued=0, tokens=100, load=0)
IDLE = PromptAt(STATUS, queued=0, tokens=100, load=0)
WRITING = IDLE._replace(load=3, answers=3)


def test_what_no_prefill_worker_has_to_wait_for_is_left_to_it() -> None:
    assert not LEARNT.wanted(THERE, IDLE)
    assert LEARNT.wanted(THERE, IDLE._replace(tokens=90)), "it has the rest cached"
    assert not LEARNT.wanted(THERE, IDLE._replace(tokens=92)), "speeds are not known so well"


def test_an_idle_rank_has_nothing_to_lose() -> None:
    """However long the prompt, it computes one that would wait at the prefill worker."""
    for tokens in (100, 100_000):
        there, idle = (each._replace(tokens=tokens) for each in (THERE, IDLE))
        assert not LEARNT.wanted(there, idle)
        assert LEARNT.wanted(there._replace(queued=tokens // 5), idle)
        assert LEARNT.wanted(there._replace(queued=1, behind=1), idle)
        coming = idle._replace(load=3)  # their prompts are at the prefill worker
        assert LEARNT.wanted(there._replace(queued=tokens // 5), coming)


def test_answers_lose_what_the_prompt_takes_each() -> None:
    """Its 10 ms and 10 of their steps take 20 on the rank; three answers lose 30, and 1 is noise.
    The prefill worker takes 10, so its queue must be worth 41.
    """
    for queued, wanted in ((409, False), (411, True)):
        assert LEARNT.wanted(THERE._replace(queued=queued), WRITING) is wanted
    for queued, wanted in ((209, False), (211, True)):
        assert LEARNT.wanted(THERE._replace(queued=queued), WRITING._replace(answers=1)) is wanted


def test_prompts_behind_it_gain_what_it_would_take_at_the_prefill_worker() -> None:
    for queued, wanted in ((209, False), (211, True)):
        there = THERE._replace(queued=queued, behind=2)
        assert LEARNT.wanted(there, WRITING) is wanted


def test_a_long_prompt_beside_many_answers_is_left_to_the_prefill_worker() -> None:
    there, here = (each._replace(tokens=8192) for each in (THERE, WRITING))
    status = WorkerStatus(max_running=32, prompt_token_us=100, decode_step_us=3200)
    many = here._replace(status=status, load=16, answers=16)
    assert not LEARNT.wanted(there._replace(queued=8192), many)
    assert LEARNT.wanted(there._replace(queued=8192), many._replace(answers=0))


def test_a_slow_link_counts_as_time_of_the_prefill_worker() -> None:
    for link_s, wanted in ((0.0009, False), (0.0011, True)):
        assert LEARNT.wanted(THERE._replace(link_s=link_s), IDLE) is wanted


def test_a_rank_without_a_free_place_or_with_another_prompt_takes_none() -> None:
    there = THERE._replace(queued=10_000)
    assert LEARNT.wanted(there, WRITING)
    assert not LEARNT.wanted(there, WRITING._replace(load=4))
    assert not LEARNT.wanted(there, WRITING._replace(queued=1))


def test_no_answer_waits_for_a_step_beyond_the_target() -> None:
    """A part of a prompt makes a step of 3.2 ms 3.2 ms longer."""
    there = THERE._replace(queued=10_000)
    for target_s, wanted in ((0.0063, False), (0.0065, True)):
        rule = PrefillHere(None, target_s)
        assert rule.wanted(there, WRITING) is wanted
        assert rule.wanted(there, IDLE), "no answer is being written there"
        assert (rule.verdict(there, WRITING) is Verdict.LIMIT) is not wanted
        assert (rule.threshold(there, WRITING) > 0) is wanted


def test_before_speeds_are_measured_a_token_counts_as_long_everywhere() -> None:
    unknown = WorkerStatus(max_running=4)
    here = IDLE._replace(status=unknown)
    there = THERE._replace(status=unknown)
    for at in (THERE, there):
        assert LEARNT.wanted(at._replace(queued=11), here)
        assert not LEARNT.wanted(at._replace(queued=9), here)
    assert sum_of(THERE, here).known and not sum_of(there, here).known
    assert LEARNT.wanted(there._replace(queued=311), here._replace(answers=3))
    assert not LEARNT.wanted(there._replace(queued=309), here._replace(answers=3))


@pytest.mark.parametrize("answers", [0, 3])
@pytest.mark.parametrize("behind", [0.0, 0.5, 9.0])
@pytest.mark.parametrize("queued", [0, 40, 900, 100_003])
def test_the_threshold_is_the_longest_prompt_that_would_be_taken(
    answers: int, behind: float, queued: int
) -> None:
    here = IDLE._replace(load=answers, answers=answers, tokens=0)
    at = THERE._replace(queued=queued, behind=behind)
    found = LEARNT.threshold(at, here)
    for tokens, wanted in ((found - 1, True), (found + 2, False)):
        if 0 < tokens < NO_LIMIT:
            there = at._replace(tokens=tokens)
            assert LEARNT.wanted(there, here._replace(tokens=tokens)) is wanted
    assert found > 0 or queued == 0
    assert LEARNT.threshold(None, here) == 0
    assert LEARNT.threshold(at, here._replace(load=4)) == 0
    limited = here._replace(status=WorkerStatus(max_running=4, max_model_len=7))
    assert LEARNT.threshold(at._replace(behind=99), limited) == 7


def test_a_fixed_threshold_is_what_it_says() -> None:
    assert PrefillHere(70).threshold(None, IDLE) == 70
    assert (PrefillHere(70).name, PrefillHere().name, LEARNT.name) == (70, "off", "auto")


@pytest.mark.parametrize(
    ("rule", "there", "here", "verdict"),
    [
        (PrefillHere(0), THERE, IDLE, Verdict.OFF),
        (LEARNT, THERE, IDLE._replace(queued=1), Verdict.PROMPTS_WAIT),
        (PrefillHere(99), THERE, IDLE, Verdict.LONG),
        (PrefillHere(100), THERE, IDLE, Verdict.FEWER_THERE),
        (PrefillHere(100), THERE._replace(queued=1), IDLE, Verdict.HERE),
        (PrefillHere(100), THERE._replace(behind=0.5), IDLE, Verdict.HERE),
        (LEARNT, THERE, IDLE._replace(load=4), Verdict.FULL),
        (PrefillHere(None, 0.001), THERE._replace(queued=10**6), WRITING, Verdict.LIMIT),
        (LEARNT, THERE, IDLE, Verdict.NO_GAIN),
        (LEARNT, THERE._replace(queued=26), IDLE, Verdict.HERE),
    ],
)
def test_each_choice_has_its_reason(
    rule: PrefillHere, there: PromptAt, here: PromptAt, verdict: Verdict
) -> None:
    assert rule.verdict(there, here) is verdict
    assert rule.wanted(there, here) is (verdict is Verdict.HERE)


def test_the_metrics_add_up_what_was_weighed_for_prompts_that_ranks_compute() -> None:
    metrics = RouterMetrics()
    facts = Decision._make([None] * len(Decision._fields))._replace(prefill_here=PrefillHere(None))
    status = WorkerStatus(max_running=8, prompt_token_us=1000, decode_step_us=5e4, beside_decode=50)
    there = PromptAt(status, queued=500, tokens=100, load=1, behind=2.0)
    for answers in (1, 40):  # the second costs too much
        here = PromptAt(status, queued=0, tokens=100, load=1, answers=answers)
        metrics.cluster.readers.chosen(facts._replace(there=there, here=here))
    page = metrics.page().decode()
    for part, seconds in (("prefill", 0.6), ("rank", 0.2), ("behind", 0.2), ("answers", 0.1)):
        name = f'baton_router_prefill_here_wait_seconds_total{{part="{part}"}}'
        (line,) = [line for line in page.splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) == pytest.approx(seconds)
    for reason, count in (("here", 1), ("no_gain", 1), ("full", 0)):
        assert f'baton_router_prompts_placed_total{{reason="{reason}"}} {count}.0' in page
