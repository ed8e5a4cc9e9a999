"""Streams of requests without a pause, each answer compared with the one engine's."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from chaos.served_hosts import ServedHosts, StreamError
from deploy.tiny_worker import prompt, served

NEAR_TIE = 1e-5
"""Log probability between the two likeliest tokens: who goes on with another's request reads in
chunks what was decoded token by token, which moves logits by some 1e-6."""


@dataclass(frozen=True)
class Question:
    """A prompt, its right answer, and by how much each token of it is the likeliest."""

    ids: list[int]
    answer: list[int]
    margins: list[float]

    def wrong(self, tokens: Sequence[int]) -> str:
        """Say where an answer is wrong; empty where it is right, up to a near tie."""
        if list(tokens) == self.answer:
            return ""
        pairs = zip(self.answer, tokens, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(tokens))
        if len(tokens) == len(self.answer) and self.margins[first] < NEAR_TIE:
            return ""
        return f"token {first} of {len(self.answer)} (margin {self.margins[first]:g}): {tokens}"


async def questions(model: Path, rng: random.Random, count: int, new: int) -> list[Question]:
    """Ask one engine that does all by itself."""
    found = []
    async with served(model) as alone:
        for _ in range(count):
            ids = prompt(rng, rng.randrange(20, 300))
            reply = await alone.generate(ids, new, return_logprob=True, top_logprobs_num=2)
            tops = reply["meta_info"]["output_top_logprobs"]
            margins = [first[0] - second[0] for first, second in tops]
            found.append(Question(ids, reply["output_ids"], margins))
    return found


@dataclass
class CheckedLoad:
    """The answers of all streams so far."""

    right: int = 0
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

    async def stream(self, cluster: ServedHosts, asked: Sequence[Question], number: int) -> None:
        while not self.ended.is_set():
            question = asked[number % len(asked)]
            number += 1
            try:
                tokens = await cluster.generate(question.ids, len(question.answer))
            except (httpx.HTTPError, StreamError) as error:
                self.errors.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
                continue
            if wrong := question.wrong(tokens):
                self.wrong.append(wrong)
            else:
                self.right += 1


@asynccontextmanager
async def checked_load(
    cluster: ServedHosts, asked: Sequence[Question], streams: int
) -> AsyncIterator[CheckedLoad]:
    """Keep so many streams running; in the end all of them end with their last answers."""
    load = CheckedLoad()
    running = [asyncio.create_task(load.stream(cluster, asked, n)) for n in range(streams)]
    try:
        yield load
        load.ended.set()
        await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
