"""Questions whose answers each need a different part of a hybrid model's state.

A prompt is a stream of statements that ends in a question:

    ada likes plum . add red . well um . add red . drop red . add blue . ask ada red :

and the answer gives each word that was asked about, and its value:

    ada plum red 1 <end>

- what a name likes is told once, anywhere in the prompt: it lies in the KV pages;
- what a box holds is the number of `add` less the number of `drop`, a running sum: SSM state;
- the first word comes from prefill; the second one stood right before the `:`, where only the
  convolution window has it in place: conv state. `say w x y :` asks for nothing but such words.

Everything here is a pure function of a seed: no torch, no files.
"""

from dataclasses import dataclass
from random import Random

from recall.language import encode
from recall.story import ASKED, SAID, TASKS, Story

HELD_OUT = 1_000_000_000
"""Seeds from here on are never drawn in training."""
SHORTEST = 16
"""Tokens of the shortest prompt: facts, of four tokens each, the question, room for an event."""


@dataclass(frozen=True)
class Question:
    """One prompt and the only right answer to it, as words; all are in the vocabulary."""

    task: str
    prompt: tuple[str, ...]
    answer: tuple[str, ...]

    @property
    def prompt_ids(self) -> list[int]:
        return encode(self.prompt)

    @property
    def answer_ids(self) -> list[int]:
        """Return the answer's ids with the end token, which a model has to sample too."""
        return encode(self.answer)

    @property
    def text(self) -> str:
        """Return the prompt as a person types it."""
        return " ".join(self.prompt)


def draw(rng: Random, task: str, length: int) -> Question:
    """Draw a question of `task` whose prompt has exactly `length` tokens."""
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: expected one of {', '.join(TASKS)}")
    if length < SHORTEST:
        raise ValueError(f"length {length} is too short: a prompt takes at least {SHORTEST} tokens")
    story = Story(rng)
    facts = [story.fact() for _ in range(ASKED)]
    told: list[list[str]] = []
    words = SAID if task == "copy" else ASKED
    room = length - (words + 2) - sum(map(len, facts))
    while room:
        told.append(story.statement(room))
        room -= len(told[-1])
    for fact in facts:  # facts hold whenever they are told; the order of events matters
        told.insert(rng.randint(0, len(told)), fact)
    asked, answer = story.question(task)
    prompt = [word for words in told for word in words] + asked
    return Question(task, tuple(prompt), tuple(answer))


def held_out(number: int, task: str, length: int) -> Question:
    """Return the `number`-th held-out question of this task and length, equal on every machine."""
    return draw(Random(f"{HELD_OUT + number} {task} {length}"), task, length)
