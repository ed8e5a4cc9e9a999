"""Clusters with several routers, and clients that send a refused request to the next router."""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from baton.core.sampling_params import SamplingParams
from baton.deploy.cluster.cluster import Cluster
from baton.deploy.cluster.config import ClusterConfig
from baton.engine.engine import Engine
from baton.engine.settings.config import EngineConfig
from baton.router.config import RouterConfig

DEADLINE_S = 300.0
RETRY_S = 0.2


@contextmanager
def running(engine: EngineConfig, **more: int) -> Iterator[Cluster]:
    # On a busy machine the only worker of a role may be away for longer than the 30 s of default.
    router = RouterConfig(engine.model, worker_wait_s=DEADLINE_S)
    with Cluster(ClusterConfig(engine, router, channel="grpc", **more)) as cluster:  # type: ignore[arg-type]
        yield cluster


def greedy(engine: EngineConfig, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Return the answers of one engine that does all by itself."""
    sampling = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    outputs = Engine.load(engine).generate(prompts, sampling)
    return [list(output.token_ids) for output in outputs]


@dataclass
class Load:
    """Streams that never end: each begins the next when one is whole."""

    cluster: Cluster
    prompts: Sequence[list[int]]
    tokens: int  # of each answer
    answers: list[tuple[list[int], list[int]]] = field(default_factory=list)  # prompt, tokens
    refused: int = 0  # requests that a router did not begin; another one took them
    _over: bool = False
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def start(self, streams: int) -> None:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(streams)]

    async def stop(self) -> None:
        """Let the streams end. Raises what went wrong on any of them."""
        self._over = True
        await asyncio.wait_for(asyncio.gather(*self._tasks), DEADLINE_S)

    async def _run(self, number: int) -> None:
        urls = self.cluster.routers.http_urls
        rng = random.Random(number)
        async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
            for turn in itertools.count(number):
                if self._over:
                    return
                prompt = rng.choice(self.prompts)
                found = await self._ask(http, urls, turn, prompt)
                self.answers.append((prompt, found))

    async def _ask(
        self, http: httpx.AsyncClient, urls: Sequence[str], turn: int, prompt: list[int]
    ) -> list[int]:
        first = turn % len(urls)
        for url in itertools.cycle([*urls[first:], *urls[:first]]):
            found = await self._try(http, url, prompt)
            if found is not None:
                return found
            self.refused += 1
            await asyncio.sleep(RETRY_S)  # as a client does before it asks another
        raise AssertionError("unreachable")

    async def _try(self, http: httpx.AsyncClient, url: str, prompt: list[int]) -> list[int] | None:
        """Return a whole answer, or None if the router did not begin it."""
        body = {"prompt": prompt, "temperature": 0, "max_tokens": self.tokens, "stream": True,
                "ignore_eos": True, "return_token_ids": True}  # fmt: skip
        found: list[int] = []
        try:
            async with http.stream("POST", f"{url}/v1/completions", json=body) as reply:
                if reply.status_code == 503:
                    return None
                assert reply.status_code == 200, reply.status_code
                async for line in reply.aiter_lines():
                    if line == "data: [DONE]":
                        assert len(found) == self.tokens, "a part of an answer"
                        return found
                    if line.startswith("data: "):
                        event = json.loads(line.removeprefix("data: "))
                        assert "error" not in event, event
                        found += event["choices"][0].get("token_ids") or []
        except httpx.TransportError:
            assert not found, "a stream that had begun was cut off"
            return None
        raise AssertionError(f"a stream ended after {len(found)} tokens")
