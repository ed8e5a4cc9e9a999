"""The state recall model answers from its SSM state: a loss of that state is a wrong answer.

The other parts of the state can be lost too, so that the figures can be compared.
"""

from collections.abc import Sequence

import pytest
from engine.engines import greedy, hand_over, run, tokens_of
from oracle.reference import Oracle
from recall_models import COURSES

from baton.engine.engine import Engine
from baton.engine.layout.grids import Strategy
from baton.engine.request.request import RequestSpec
from baton.engine.settings.config import EngineConfig
from recall.questions import Question, held_out

COURSE = COURSES["state_recall"]
MODEL = COURSE.folder / "model"
LENGTH = 128
NUMBER = 32  # questions
CACHED = LENGTH - 4  # tokens of a prompt: all but its question


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    tasks = COURSE.learnt
    return [held_out(number, tasks[number % len(tasks)], LENGTH) for number in range(NUMBER)]


def load(**options: object) -> Engine:
    defaults: dict[str, object] = {
        "page_size": 16,
        "max_running": NUMBER,
        "max_model_len": 256,
        "memory_bytes": 1 << 29,
        "tickets": NUMBER,
        "held_fraction": 1.0,
    }
    return Engine.load(EngineConfig(model=MODEL, **defaults | options))  # type: ignore[arg-type]


def lose_ssm(engine: Engine, slots: Sequence[int]) -> None:
    for state in engine.states.ssm:
        assert state is not None and state[slots].any(), "there is something to lose"
        state[slots] = 0


def answers_after_hand_off(questions: Sequence[Question], lost: str = "") -> list[list[int]]:
    """Return each answer's tokens: the first one is the prefill engine's.

    lost: what of each state is zeroed before it is copied: "ssm", "kv", or "" for nothing.
    """
    source, target = load(), load()
    specs = [
        RequestSpec(str(number), tuple(q.prompt_ids), greedy(len(q.answer)), hold=True)
        for number, q in enumerate(questions)
    ]
    for spec in specs:
        source.submit(spec)
    events = run(source)
    for spec in specs:
        held = source.parked_state(spec.request_id)
        if lost == "ssm":
            lose_ssm(source, [held.state.slot])
        elif lost == "kv":
            source.pages.storage[list(held.state.pages)] = 0
        hand_over(source, target, spec, tuple(tokens_of(events, spec.request_id)))
    events += run(target)
    return [tokens_of(events, spec.request_id) for spec in specs]


def number_right(questions: Sequence[Question], answers: Sequence[Sequence[int]]) -> int:
    pairs = zip(questions, answers, strict=True)
    return sum(list(answer) == question.answer_ids for question, answer in pairs)


@pytest.fixture(scope="module")
def answers(questions: list[Question]) -> list[list[int]]:
    """Answers after hand-offs that lost nothing."""
    return answers_after_hand_off(questions)


def test_answers_survive_a_hand_off(questions: list[Question], answers: list[list[int]]) -> None:
    assert number_right(questions, answers) >= 0.95 * NUMBER


def test_answers_are_those_of_transformers(
    questions: list[Question], answers: list[list[int]], oracle: Oracle
) -> None:
    prompts = [question.prompt_ids for question in questions]
    oracle.assert_all_greedy(MODEL, prompts, answers, len(questions[0].answer))


def test_a_hand_off_that_loses_the_ssm_state_costs_at_least_half_of_the_answers(
    questions: list[Question], answers: list[list[int]]
) -> None:
    right = number_right(questions, answers_after_hand_off(questions, lost="ssm"))
    assert right <= number_right(questions, answers) / 2


def test_the_state_carries_more_than_the_kv_pages(questions: list[Question]) -> None:
    without_kv = number_right(questions, answers_after_hand_off(questions, lost="kv"))
    print(f"without KV {without_kv} of {NUMBER} answers are right")
    assert without_kv > number_right(questions, answers_after_hand_off(questions, lost="ssm"))


def answers_from_snapshots(questions: Sequence[Question], *, lost: bool) -> list[list[int]]:
    """Return each answer's tokens, with the state of nearly the whole prompt from the cache.

    lost: the SSM state of all snapshots.
    """
    engine = load(
        mamba_scheduler_strategy=Strategy.NO_BUFFER, page_size=1, cached_snapshots=2 * NUMBER
    )
    engine.generate([tuple(q.prompt_ids[:CACHED]) for q in questions], greedy(1))
    if lost:
        lose_ssm(engine, range(engine.plan.slots))
    sampling = [greedy(len(q.answer)) for q in questions]
    outputs = engine.generate([tuple(q.prompt_ids) for q in questions], sampling)
    assert all(output.finished.usage.cached_tokens == CACHED for output in outputs)
    return [list(output.token_ids) for output in outputs]


@pytest.mark.parametrize(("lost", "least", "most"), [(False, 0.95, 1.0), (True, 0.0, 0.5)])
def test_snapshots_that_lost_the_ssm_state_cost_at_least_half_of_the_answers(
    questions: list[Question], lost: bool, least: float, most: float
) -> None:
    right = number_right(questions, answers_from_snapshots(questions, lost=lost))
    assert least * NUMBER <= right <= most * NUMBER
