"""The router's neighbours in its tests: a router among fake workers, and its clients."""

import asyncio
import random
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import httpx
from certificates import folder_of
from fake_workers import DEADLINE_S, VOCAB, FakeRank, FakeWorker, within
from toy_tokenizer import save_folder

from baton.core.supervised import ProcessSupervisor
from baton.proto import inference_pb2_grpc
from baton.proto.common_pb2 import SamplingParams
from baton.proto.inference_pb2 import GenerateReply, GenerateRequest, TokenIds
from baton.router.config import RouterConfig
from baton.router.server import RouterServer


def model_folder(folder: Path) -> Path:
    (folder / "config.json").write_text(
        f'{{"vocab_size": {VOCAB}, "max_position_embeddings": 4096}}'
    )
    return save_folder(folder)


def random_ids(rng: random.Random, count: int) -> list[int]:
    """Token ids that are plain text for the toy tokenizer."""
    return [rng.randrange(10, 250) for _ in range(count)]


class Cluster(AbstractAsyncContextManager["Cluster"]):
    """A real router on ephemeral ports, and the workers that the test adds."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.config = RouterConfig(
            model=model_folder(folder), credentials=folder_of("router", "router-0"), **options
        )
        self.owner = ProcessSupervisor()
        self.server = RouterServer(self.config, self.owner)
        self.headers: dict[str, str] = {}  # of the questions about workers
        self.verify: ssl.SSLContext | bool = True  # whom these questions trust
        self._workers: list[FakeWorker] = []

    async def __aenter__(self) -> "Cluster":
        self.started = await self.server.start()
        self.http = f"http://{self.started.http_address}"
        self.channel = grpc.aio.insecure_channel(self.started.grpc_address)
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.channel.close()
        for worker in self._workers:
            await worker.__aexit__(kind, error, trace)
        await self.server.stop(grace_s=0.0)

    def trust(self, authority: bytes, headers: dict[str, str]) -> None:
        """Ask over HTTPS, trusting this authority (PEM)."""
        self.http = f"https://{self.started.http_address}"
        self.verify = ssl.create_default_context(cadata=authority.decode())
        self.headers = headers

    async def add(self, *workers: FakeWorker) -> None:
        """Serve and register; requests can be started on a rank when this returns."""
        for worker in workers:
            self._workers.append(worker)
            await worker.__aenter__()
            reply = await worker.register(self.started.internal_address)
            assert not reply.HasField("error"), reply
            if isinstance(worker, FakeRank):
                await within(worker.hellos.get())
                await self.until(partial(_ready, rank=worker))  # its answer may be on the way

    def generate(
        self, prompt: Sequence[int], timeout: float = DEADLINE_S, **options: Any
    ) -> "grpc.aio.UnaryStreamCall[GenerateRequest, GenerateReply]":
        """A streaming gRPC call; `options` are those of SamplingParams."""
        return self.inference.Generate(
            GenerateRequest(
                token_ids=TokenIds(ids=prompt), stream=True, sampling=SamplingParams(**options)
            ),
            timeout=timeout,
        )

    async def workers(self) -> dict[str, dict[str, object]]:
        """Return the entry of each worker in `/server_info`, by id."""
        return {w["worker_id"]: w for w in (await self.server_info())["workers"]}

    async def server_info(self) -> dict[str, Any]:
        async with httpx.AsyncClient(
            base_url=self.http, timeout=DEADLINE_S, verify=self.verify
        ) as client:
            reply = await client.get("/server_info", headers=self.headers)
            info: dict[str, Any] = reply.raise_for_status().json()
        return info

    async def until_active(self, count: int) -> None:
        """Ask until the router has as many requests that have not ended."""
        async with httpx.AsyncClient(base_url=self.http, timeout=DEADLINE_S) as client:
            async with asyncio.timeout(DEADLINE_S):
                while (await client.get("/server_info")).json()["router"]["active"] != count:
                    pass

    async def until(self, true_of: Callable[[dict[str, dict[str, object]]], bool]) -> None:
        """Ask for `workers` until what is said of them is true."""
        async with asyncio.timeout(DEADLINE_S):
            while not true_of(await self.workers()):
                pass


def _ready(workers: Mapping[str, Mapping[str, object]], rank: FakeWorker) -> bool:
    """Return whether the router starts requests on exactly this incarnation of the rank."""
    seen = workers[rank.worker_id]
    return bool(seen["ready"]) and seen["incarnation"] == rank.incarnation


async def replies_of(
    call: "grpc.aio.UnaryStreamCall[GenerateRequest, GenerateReply]",
) -> list[GenerateReply]:
    """All that are still to come."""
    replies: list[GenerateReply] = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        replies.append(reply)
    return replies
