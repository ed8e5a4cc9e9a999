"""Streams of requests without a pause, each answer compared with the one engine's."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from chaos.served_hosts import ServedCluster, StreamError
from deploy.tiny_worker import Client, prompt, served

CUTS = 2  # of each answer, where the error is measured
MOST_ERROR = 5e-6
"""The largest change of a log probability that another order of sums explains: one of a wrong state
must not pass for it."""


@dataclass(frozen=True)
class Question:
    """A prompt, its right answer, and by how much each token of it is the likeliest."""

    ids: list[int]
    answer: list[int]
    tops: list[dict[int, float]]  # the two likeliest tokens at each position, log probabilities

    def margin(self, position: int) -> float:
        likeliest, next_best = sorted(self.tops[position].values(), reverse=True)
        return likeliest - next_best


@dataclass(frozen=True)
class Questions:
    """Questions, and the measured error of a log probability where an answer is resumed.

    Who goes on with another's request reads in chunks what was decoded token by token: sums in
    another order. A token may differ where its margin is below twice that error.
    """

    asked: list[Question]
    error: float

    def judge(self, question: Question, tokens: Sequence[int]) -> tuple[bool, str]:
        """Return whether an answer is right, and where it differs; right up to a near tie."""
        if list(tokens) == question.answer:
            return True, ""
        pairs = zip(question.answer, tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is None:
            return False, f"{len(tokens)} tokens of {len(question.answer)}"
        margin, whole = question.margin(first), len(tokens) == len(question.answer)
        told = f"token {first} of {len(question.answer)} (margin {margin:g}): {list(tokens)}"
        return whole and margin < 2 * self.error, told


async def questions(model: Path, rng: random.Random, count: int, new: int) -> Questions:
    """Ask one engine that does all by itself, then another that resumes parts of each answer."""
    async with served(model) as alone:
        asked = [await _ask(alone, prompt(rng, rng.randrange(20, 300)), new) for _ in range(count)]
    error = 0.0
    async with served(model, prefix_caching=False) as other:
        for question in asked:
            for cut in rng.sample(range(1, new), CUTS):
                read = [*question.ids, *question.answer[:cut]]
                resumed = await _ask(other, read, new - cut)
                error = max(error, _largest_change(question.tops[cut:], resumed))
    print(f"log probabilities move by {error:g} at most where an answer is resumed")
    assert 0 < error < MOST_ERROR
    return Questions(asked, error)


async def _ask(engine: Client, ids: list[int], new: int) -> Question:
    reply = await engine.generate(ids, new, return_logprob=True, top_logprobs_num=2)
    tops = reply["meta_info"]["output_top_logprobs"]
    return Question(ids, reply["output_ids"], [{top[1]: top[0] for top in each} for each in tops])


def _largest_change(whole: Sequence[dict[int, float]], resumed: Question) -> float:
    """Return the largest change of a token's log probability, while both have the same context."""
    largest = 0.0
    for before, after, token in zip(whole, resumed.tops, resumed.answer, strict=True):
        changes = (abs(after[each] - before[each]) for each in before.keys() & after.keys())
        largest = max(largest, *changes, 0.0)
        if token != max(before, key=lambda each: before[each]):
            break  # after a near tie
    return largest


@dataclass
class CheckedLoad:
    """The answers of all streams so far."""

    right: int = 0
    near_ties: int = 0  # of the right ones
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self) -> None:
        assert not self.wrong, self.wrong
        assert not self.errors, self.errors

    async def more(self, count: int) -> None:
        """Wait for so many more right answers."""
        wanted = self.right + count
        while self.right < wanted and not self.wrong:
            await asyncio.sleep(0.05)

    async def stream(self, cluster: ServedCluster, questions: Questions, number: int) -> None:
        while not self.ended.is_set():
            question = questions.asked[number % len(questions.asked)]
            number += 1
            try:
                tokens = await cluster.generate(question.ids, len(question.answer))
            except (httpx.HTTPError, StreamError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
                continue
            right, difference = questions.judge(question, tokens)
            if right:
                self.right += 1
                self.near_ties += bool(difference)
            else:
                self.wrong.append(difference)


@asynccontextmanager
async def checked_load(
    cluster: ServedCluster, questions: Questions, streams: int
) -> AsyncIterator[CheckedLoad]:
    """Keep so many streams running; in the end all of them end with their last answers."""
    load = CheckedLoad()
    running = [asyncio.create_task(load.stream(cluster, questions, n)) for n in range(streams)]
    try:
        yield load
        load.ended.set()
        await asyncio.gather(*running)
        print(f"{load.right} right answers, {load.near_ties} of them with a near tie")
    finally:
        for task in running:
            task.cancel()
