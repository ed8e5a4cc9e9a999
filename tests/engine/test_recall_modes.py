"""The recall model answers as well in every mode as it does from nothing.

An answer that is right from nothing and wrong in a mode has lost a part of its state there.
`--recall-prompts 1000` asks more.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine.engines import assert_clean, greedy

from baton.deploy.files.example_model import EXAMPLE_PROMPT
from baton.engine.engine import Engine
from baton.engine.layout.grids import Strategy
from baton.engine.request.output import Output
from baton.engine.settings.choices import SpeculativeAlgorithm
from baton.engine.settings.config import EngineConfig
from baton.text.tokenizer import Tokenizer
from recall.questions import Question, draw
from recall.story import LEARNT

MODEL = Path(__file__).parents[2] / "examples" / "recall" / "model"
LENGTHS = (72, 130)  # tokens of a prompt; the model's chunk, and so the grid, is 64
BATCH = 50  # questions at once

pytestmark = pytest.mark.skipif(
    not (MODEL / "model.safetensors").is_file(),
    reason=f"no recall model in {MODEL}: train it with `python -m recall.train`",
)


@pytest.fixture(scope="module")
def questions(request: pytest.FixtureRequest) -> list[Question]:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    count = request.config.getoption("--recall-prompts")
    return [draw(rng, LEARNT[n % len(LEARNT)], rng.randint(*LENGTHS)) for n in range(count)]


@pytest.fixture(scope="module")
def cold(questions: list[Question]) -> list[bool]:
    """Return for each answer whether it is right without a cache."""
    right = rightly(questions, ask(engine(prefix_caching=False), questions))
    print(f"cold: {sum(right)} of {len(questions)} right")
    assert any(right), "a model that is never right cannot show a loss"
    return right


def engine(**options: object) -> Engine:
    defaults: dict[str, object] = {
        "page_size": 16,
        "max_running": 16,
        "max_model_len": 256,
        "memory_bytes": 1 << 29,
        "cached_snapshots": 4 * BATCH,
    }
    return Engine.load(EngineConfig(model=MODEL, **defaults | options))  # type: ignore[arg-type]


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


def test_from_snapshots(questions: list[Question], cold: list[bool]) -> None:
    assert rightly(questions, ask_from_hits(engine(), questions)) == cold


def test_from_live_states_without_buffers(questions: list[Question], cold: list[bool]) -> None:
    of = engine(mamba_scheduler_strategy=Strategy.NO_BUFFER, page_size=1)
    assert rightly(questions, ask_from_hits(of, questions)) == cold


def test_in_chunks_that_end_off_the_grid(questions: list[Question], cold: list[bool]) -> None:
    assert rightly(questions, ask(engine(chunked_prefill_size=40), questions)) == cold


@pytest.mark.parametrize("overlap", [False, True])
def test_with_and_without_overlap(
    questions: list[Question], cold: list[bool], overlap: bool
) -> None:
    assert rightly(questions, ask(engine(overlap=overlap), questions)) == cold


def test_preempted(questions: list[Question], cold: list[bool]) -> None:
    plan = engine(page_size=1).plan
    slots = plan.slots * plan.slot_layout.slot_bytes
    pages = (1 + LENGTHS[1] * 3) * plan.page_layout.page_bytes  # three of the longest
    fixed = plan.weight_bytes + plan.step_bytes + plan.tables.nbytes
    small = engine(page_size=1, memory_bytes=fixed + slots + pages)
    # Answers alone are so short that hardly any row outgrows the pool.
    assert rightly(questions, ask(small, questions, more=12)) == cold
    assert small.counters.preemptions


@pytest.mark.parametrize("tokens", [2, 4, 8])
def test_with_drafts(questions: list[Question], cold: list[bool], tokens: int) -> None:
    of = engine(
        speculative_algorithm=SpeculativeAlgorithm.NGRAM, speculative_num_draft_tokens=tokens
    )
    assert rightly(questions, ask_from_hits(of, questions)) == cold
    assert of.counters.draft_rows


def test_it_answers_the_question_that_serve_prints() -> None:
    tokenizer = Tokenizer.from_folder(MODEL)
    prompt = tuple(tokenizer.encode(EXAMPLE_PROMPT))
    (output,) = engine().generate([prompt], greedy(32))
    assert tokenizer.decode(output.token_ids) == "ben tea ada plum"
