"""The committed models are right, and wrong as soon as a part of their state is lost."""

import json
import random
from pathlib import Path

import pytest
import torch
from recall_models import COURSES
from tokenizers import Tokenizer
from transformers import GraniteMoeHybridForCausalLM

from recall.evaluate import MODEL, answer, exercise, load, measure, score
from recall.export import config, export
from recall.language import VOCABULARY
from recall.network import Network
from recall.train import Course, TrainingRun

SEED = random.randrange(2**31)
MOST_BYTES = {"recall": 12_000_000, "state_recall": 1_000_000}  # of a model's folder
each_course = pytest.mark.parametrize("course", COURSES.values(), ids=COURSES)


@pytest.fixture(scope="module")
def models() -> dict[str, GraniteMoeHybridForCausalLM]:
    return {name: load(course.folder / "model") for name, course in COURSES.items()}


@each_course
def test_it_answers_held_out_questions(
    models: dict[str, GraniteMoeHybridForCausalLM], course: Course
) -> None:
    questions, answers = [], []
    for length, number in ((64, 64), (256, 32), (512, 16)):
        asked = exercise(length, number)
        questions += asked
        answers += answer(models[course.folder.name], asked)
    scores = score(questions, answers)
    assert all(scores[task] >= 0.99 for task in course.learnt)


@pytest.mark.parametrize(
    ("name", "part", "task"),
    [
        ("recall", "kv", "recall"),
        ("recall", "conv", "recall"),
        ("recall", "conv", "copy"),
        ("state_recall", "ssm", "recall"),
        ("state_recall", "conv", "recall"),
    ],
)
def test_a_hand_off_that_loses_a_part_makes_answers_wrong(
    models: dict[str, GraniteMoeHybridForCausalLM], name: str, part: str, task: str
) -> None:
    assert measure(models[name], length=128, number=48, lost=part)[task] <= 0.6


@each_course
def test_it_was_exported_by_this_code_and_is_small(course: Course) -> None:
    model = course.folder / "model"
    assert json.loads((model / "config.json").read_text()) == config(course.shape, course.dtype)
    assert sum(path.stat().st_size for path in model.iterdir()) <= MOST_BYTES[course.folder.name]


@each_course
def test_transformers_computes_what_training_computes(course: Course, tmp_path: Path) -> None:
    print("seed", SEED)
    torch.manual_seed(SEED)
    network = Network(course.shape)
    export(network, tmp_path, torch.float32)
    ids = torch.randint(len(VOCABULARY), (2, 3 * course.shape.chunk))
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(ids).logits, network(ids), atol=1e-4, rtol=0)


def test_text_becomes_words_and_words_become_text() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids = tokenizer.encode("Ada likes plum. Add red!\nask ADA red 12 :").ids
    words = "ada likes plum . add red <unk> ask ada red 1 2 :"
    assert tokenizer.decode(ids, skip_special_tokens=False) == words
    assert [tokenizer.token_to_id(word) for word in VOCABULARY] == list(range(len(VOCABULARY)))


def test_a_chat_puts_the_question_right_before_its_answer() -> None:
    jinja2 = pytest.importorskip("jinja2.sandbox")
    source = json.loads((MODEL / "tokenizer_config.json").read_text())["chat_template"]
    template = jinja2.ImmutableSandboxedEnvironment().from_string(source)
    messages = [
        {"role": "system", "content": "Ben likes tea."},
        {"role": "user", "content": "Ask ben red blue?"},
        {"role": "assistant", "content": "ben red blue = tea 0 0"},
        {"role": "user", "content": "Add red. Ask ben red blue"},
    ]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "Ben likes tea. Ask ben red blue : ben red blue = tea 0 0 <end> Add red. Ask ben red blue :"
    )


@each_course
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(course: Course, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole = TrainingRun(tmp_path / "whole.pt", course, peak=1e-3)
    losses = [whole.advance() for _ in range(3)]
    stopped = TrainingRun(tmp_path / "stopped.pt", course, peak=1e-3)
    assert stopped.advance() == losses[0]
    stopped.save()
    resumed = TrainingRun(tmp_path / "stopped.pt", course, peak=1e-3)
    assert [resumed.advance() for _ in range(2)] == losses[1:]
