"""Training streams: stories with many questions, so that each step trains on many answers."""

from collections.abc import Sequence
from random import Random

from recall.language import encode
from recall.questions import HELD_OUT
from recall.story import ASKED, TASKS, Story

IGNORED = -100
"""The target of a token that no loss is taken on (torch's default ignore_index)."""
LONGEST_TURN = 9
"""Words of the longest question with its answer: 5 + 4 or 4 + 5."""


def lesson(seed: int, length: int, tasks: Sequence[str] = TASKS) -> tuple[list[int], list[int]]:
    """Return inputs and next-token targets of `tasks`, `length` ids each; only answers have
    targets.
    """
    if not 0 <= seed < HELD_OUT:
        raise ValueError(
            f"training seed {seed} must lie in 0 to {HELD_OUT - 1}: others are held out"
        )
    rng = Random(seed)
    story = Story(rng)
    words: list[str] = []
    answered: list[bool] = []
    # Most streams ask throughout, some only at the end, as a prompt of that length does.
    often = rng.choice((0.0, 0.1, 0.2, 0.3))
    first = length - LONGEST_TURN * rng.randint(1, 4)
    facts = 0
    while len(words) <= length:
        answer: list[str] = []
        if facts < ASKED:
            told = story.fact()
            facts += 1
        elif len(words) >= first or rng.random() < often:
            told, answer = story.question(rng.choice(tasks))
        else:
            room = max(1, first - len(words))
            told = story.statement(room)
        words += told + answer
        answered += [False] * len(told) + [True] * len(answer)
    ids = encode(words[: length + 1])
    targets = [
        token if is_answer else IGNORED
        for token, is_answer in zip(ids[1:], answered[1 : length + 1], strict=True)
    ]
    return ids[:length], targets
