"""Streams of a small model that are begun again and again, none of which may be lost."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import httpx

TOKENS = 96  # of a stream
PROMPTS = 8
DEADLINE_S = 300.0


class Served(Protocol):
    """A cluster in pods, and a client of it."""

    @property
    def http(self) -> httpx.AsyncClient: ...

    def endpoint(self) -> str:
        """Return the URL of a pod that takes requests, as a Service chooses one."""
        ...


@asynccontextmanager
async def client(key: str) -> AsyncIterator[httpx.AsyncClient]:
    """Make a client with a connection for each request, as a Service spreads them."""
    async with httpx.AsyncClient(
        timeout=DEADLINE_S,
        headers={"Authorization": f"Bearer {key}"},
        limits=httpx.Limits(max_keepalive_connections=0),
    ) as http:
        yield http


def body(number: int, tokens: int) -> dict[str, object]:
    prompt = [(7 * number + 3 * place) % 290 for place in range(40)]
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True}  # fmt: skip


async def answer(
    cluster: Served, number: int, length: int = TOKENS, begun: asyncio.Event | None = None
) -> list[int]:
    """Return the tokens of a stream. Raises AssertionError for one that is not whole.

    begun: set once its first token has come.
    """
    tokens: list[int] = []
    done = False
    url = f"{cluster.endpoint()}/v1/completions"
    async with cluster.http.stream("POST", url, json=body(number, length)) as reply:
        assert reply.status_code == 200, await reply.aread()
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                done = True
            elif line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                tokens += chunk["choices"][0].get("token_ids") or []
                if begun is not None and tokens:
                    begun.set()
    assert done and len(tokens) == length, (done, len(tokens))
    return tokens


@dataclass
class Load:
    """So many streams at once, begun again and again, and how they ended."""

    cluster: Served
    right: list[list[int]]
    streams: int
    ended: int = 0
    lost: list[str] = field(default_factory=list)
    stopping: bool = False

    async def run(self) -> None:
        await asyncio.gather(*(self._one(number) for number in range(self.streams)))

    async def more(self, streams: int) -> None:
        """Wait until so many streams more have ended."""
        before = self.ended
        async with asyncio.timeout(DEADLINE_S):
            while self.ended < before + streams:
                await asyncio.sleep(0.1)

    async def _one(self, number: int) -> None:
        while not self.stopping:
            number = (number + 1) % PROMPTS
            try:
                tokens = await answer(self.cluster, number)
                if tokens != self.right[number]:
                    self.lost.append(f"other tokens of prompt {number}")
            except (AssertionError, httpx.HTTPError) as error:
                self.lost.append(f"{type(error).__name__}: {error}"[:300])
            self.ended += 1
