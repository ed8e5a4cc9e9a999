"""The trained models of examples/ answer as well in every mode as they do from nothing.

An answer that is right from nothing and wrong in a mode has lost a part of its state there.
`--recall-prompts 1000` asks more.
"""

import random
from collections.abc import Sequence

import pytest
from engine.engines import assert_clean, greedy
from recall_models import COURSES

from baton.deploy.files.example_model import EXAMPLE_MODEL, EXAMPLE_PROMPT
from baton.engine.engine import Engine
from baton.engine.layout.grids import Strategy
from baton.engine.request.output import Output
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.text.tokenizer import Tokenizer
from recall.questions import Question, draw
from recall.train import Course

LENGTHS = (72, 130)  # tokens of a prompt; the models' chunk, and so the grid, is 64
BATCH = 50  # questions at once


@pytest.fixture(scope="module", params=COURSES)
def course(request: pytest.FixtureRequest) -> Course:
    return COURSES[request.param]


@pytest.fixture(scope="module")
def questions(request: pytest.FixtureRequest, course: Course) -> list[Question]:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    tasks = course.learnt
    count = request.config.getoption("--recall-prompts")
    return [draw(rng, tasks[n % len(tasks)], rng.randint(*LENGTHS)) for n in range(count)]


@pytest.fixture(scope="module")
def cold(course: Course, questions: list[Question]) -> list[bool]:
    """Return for each answer whether it is right without a cache."""
    right = rightly(questions, ask(engine(course, prefix_caching=False), questions))
    print(f"cold: {sum(right)} of {len(questions)} right")
    assert sum(right) > len(right) / 2, "a model that is seldom right seldom shows a loss"
    return right


def engine(course: Course, **options: object) -> Engine:
    defaults: dict[str, object] = {
        "page_size": 16,
        "max_running": 16,
        "max_model_len": 256,
        "memory_bytes": 1 << 29,
        "cached_snapshots": 4 * BATCH,
    }
    model = course.folder / "model"
    return Engine.load(EngineConfig(model=model, **defaults | options))  # type: ignore[arg-type]


def ask(of: Engine, questions: Sequence[Question], more: int = 0) -> list[Output]:
    """more: tokens after each answer."""
    outputs: list[Output] = []
    for first in range(0, len(questions), BATCH):
        part = questions[first : first + BATCH]
        sampling = [greedy(len(question.answer) + more) for question in part]
        outputs += of.generate([tuple(question.prompt_ids) for question in part], sampling)
        assert_clean(of)
    of.close()
    return outputs


def ask_from_hits(of: Engine, questions: Sequence[Question]) -> list[Output]:
    """The beginning of each prompt first, up to a few words before its question's end."""
    outputs: list[Output] = []
    for first in range(0, len(questions), BATCH):
        part = questions[first : first + BATCH]
        of.generate([tuple(q.prompt_ids[: -1 - n % 7]) for n, q in enumerate(part)], greedy(1))
        sampling = [greedy(len(question.answer)) for question in part]
        outputs += of.generate([tuple(question.prompt_ids) for question in part], sampling)
        assert_clean(of)
    of.close()
    assert all(output.finished.usage.cached_tokens > 0 for output in outputs)
    return outputs


def rightly(questions: Sequence[Question], outputs: Sequence[Output]) -> list[bool]:
    """Return for each answer whether its tokens from the second on are right."""
    pairs = zip(questions, outputs, strict=True)
    return [list(o.token_ids[1 : len(q.answer)]) == q.answer_ids[1:] for q, o in pairs]


def test_from_snapshots(course: Course, questions: list[Question], cold: list[bool]) -> None:
    assert rightly(questions, ask_from_hits(engine(course), questions)) == cold


def test_from_live_states_without_buffers(
    course: Course, questions: list[Question], cold: list[bool]
) -> None:
    of = engine(course, mamba_scheduler_strategy=Strategy.NO_BUFFER, page_size=1)
    assert rightly(questions, ask_from_hits(of, questions)) == cold


def test_in_chunks_that_end_off_the_grid(
    course: Course, questions: list[Question], cold: list[bool]
) -> None:
    assert rightly(questions, ask(engine(course, chunked_prefill_size=40), questions)) == cold


@pytest.mark.parametrize("overlap", [False, True])
def test_with_and_without_overlap(
    course: Course, questions: list[Question], cold: list[bool], overlap: bool
) -> None:
    assert rightly(questions, ask(engine(course, overlap=overlap), questions)) == cold


def test_preempted(course: Course, questions: list[Question], cold: list[bool]) -> None:
    plan = engine(course, page_size=1).plan
    slots = plan.slots * plan.slot_layout.slot_bytes
    pages = (1 + LENGTHS[1] * 3) * plan.page_layout.page_bytes  # three of the longest
    fixed = plan.weight_bytes + plan.step_bytes + plan.tables.nbytes
    small = engine(course, page_size=1, memory_bytes=fixed + slots + pages)
    # Answers alone are so short that hardly any row outgrows the pool.
    assert rightly(questions, ask(small, questions, more=12)) == cold
    assert small.counters.preemptions


# Its questions to copy words are those that find drafts in their own prompts.
@pytest.mark.parametrize("course", ["recall"], indirect=True)
@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_with_drafts(
    course: Course, questions: list[Question], cold: list[bool], tokens: int
) -> None:
    of = engine(
        course,
        speculative_algorithm=SpeculativeAlgorithm.NGRAM,
        speculative_num_draft_tokens=tokens,
    )
    assert rightly(questions, ask_from_hits(of, questions)) == cold
    assert of.counters.draft_rows


def asked_again(question: Question) -> Question:
    """Return the question after a turn that answered it with two words swapped, which become the
    drafts of its answer.
    """
    said = list(question.answer)
    said[1], said[-2] = said[-2], said[1]
    last = len(question.prompt) - question.prompt[::-1].index(".")
    prompt = (*question.prompt, *said, *question.prompt[last:])
    return Question(question.task, prompt, question.answer)


def test_with_drafts_that_are_wrong(course: Course, questions: list[Question]) -> None:
    again = [asked_again(question) for question in questions[:BATCH]]
    right = rightly(again, ask(engine(course, prefix_caching=False), again))
    assert sum(right) > len(right) / 2
    of = engine(course, speculative_algorithm=SpeculativeAlgorithm.NGRAM)
    assert rightly(again, ask(of, again)) == right
    assert of.counters.draft_tokens > of.counters.draft_tokens_accepted


def test_it_answers_the_question_that_serve_prints() -> None:
    tokenizer = Tokenizer.from_folder(EXAMPLE_MODEL)
    prompt = tuple(tokenizer.encode(EXAMPLE_PROMPT))
    (output,) = engine(COURSES["recall"]).generate([prompt], greedy(32))
    assert tokenizer.decode(output.token_ids) == "ben tea ada plum"
