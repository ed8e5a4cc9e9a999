"""The question generator: what it says is true, and it says the same every time."""

import random

import pytest

from recall.language import IDS, VOCABULARY
from recall.lessons import IGNORED, LONGEST_TURN, lesson
from recall.questions import HELD_OUT, SHORTEST, Question, draw, held_out
from recall.story import ASKED, BOXES, SAID, TASKS

SEED = random.randrange(HELD_OUT)


def understood(words: tuple[str, ...]) -> list[str]:
    """Answers a prompt by reading its sentences one after the other, from their meaning alone."""
    *story, question = " ".join(words).split(".")
    values = dict.fromkeys(BOXES, 0)
    likes: dict[str, str] = {}
    for sentence in map(str.split, story):
        match sentence:
            case [name, "likes", thing]:
                assert name not in likes
                likes[name] = thing
            case ["add", box]:
                values[box] += 1
            case ["drop", box]:
                values[box] -= 1
        assert all(0 <= value <= 5 for value in values.values())
    verb, *asked, colon = question.split()
    assert (verb, len(asked), colon) in (("ask", ASKED, ":"), ("say", SAID, ":"))
    if verb == "say":
        return [*asked, "<end>"]
    told = [(word, likes.get(word) or str(values[word])) for word in asked]
    return [*(word for pair in told for word in pair), "<end>"]


@pytest.mark.parametrize("task", TASKS)
def test_every_answer_follows_from_its_prompt(task: str) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    for _ in range(50):
        length = rng.randint(SHORTEST, 600)
        question = draw(rng, task, length)
        assert len(question.prompt_ids) == length
        assert list(question.answer) == understood(question.prompt)
        assert [VOCABULARY[token] for token in question.answer_ids] == list(question.answer)


def test_a_held_out_question_is_the_same_every_time_and_unlike_its_neighbours() -> None:
    drawn = [held_out(number, task, 64) for number in range(20) for task in TASKS]
    assert drawn == [held_out(number, task, 64) for number in range(20) for task in TASKS]
    assert len({question.prompt for question in drawn}) == len(drawn)


def test_a_lesson_teaches_the_answers_and_nothing_else() -> None:
    print("seed", SEED)
    inputs, targets = lesson(SEED, 512)
    assert len(inputs) == len(targets) == 512
    taught = [index for index, target in enumerate(targets) if target != IGNORED]
    assert len(taught) >= SAID + 1
    assert all(inputs[index + 1] == targets[index] for index in taught if index < 511)
    first = taught[0]
    assert inputs[first] == IDS[":"]
    prompt = tuple(VOCABULARY[token] for token in inputs[: first + 1])
    answer = [VOCABULARY[token] for token in targets[first : first + LONGEST_TURN]]
    right = understood(prompt)
    assert answer[: len(right)] == right


def test_bad_requests_say_what_was_expected() -> None:
    with pytest.raises(ValueError, match="unknown task 'sums': expected one of recall"):
        draw(random.Random(0), "sums", 64)
    with pytest.raises(ValueError, match="at least 16 tokens"):
        draw(random.Random(0), "count", SHORTEST - 1)
    with pytest.raises(ValueError, match="others are held out"):
        lesson(HELD_OUT, 64)


def test_a_question_reads_as_a_person_types_it() -> None:
    question = Question("copy", ("say", "ada", "red", "plum", ":"), ("ada", "red", "plum", "<end>"))
    assert question.text == "say ada red plum :"
