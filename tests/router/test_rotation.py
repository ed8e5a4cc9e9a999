"""Everything that proves somebody is changed while 64 answers run at a real router."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import grpc
import httpx
import pytest
from certificates import authority, folder_of
from fake_workers import DEADLINE_S, FakeRank, FakeWorker, tokens_of, within
from https_certificates import TestAuthority
from router_neighbours import Cluster

from baton.api.access.keys import Key, KeyScope, digest_of, new_key, write_keys
from baton.proto import inference_pb2_grpc
from baton.proto.inference_pb2 import GenerateRequest, TokenIds
from baton.rpc import file_watcher
from baton.rpc.identity import Identity, ProcessRole

STREAMS = 32  # over each protocol


def key(text: str) -> Key:
    return Key(f"key {text[-5:]}", digest_of(text), frozenset(KeyScope))


def reissue(role: str, name: str) -> None:
    """Give a process that runs a new certificate."""
    folder = folder_of(role, name)
    authority().issue(Identity(ProcessRole(role), name, "tests"), folder)


class Client:
    """A client with a key that trusts one authority, on connections of its own."""

    def __init__(self, cluster: Cluster, trusted: TestAuthority, key: str) -> None:
        self.headers = {"authorization": f"Bearer {key}"}
        context = ssl.create_default_context(cadata=trusted.pem.decode())
        limits = httpx.Limits(max_connections=None)
        self.http = httpx.AsyncClient(
            base_url=f"https://{cluster.started.http_address}",
            verify=context, timeout=DEADLINE_S, headers=self.headers, limits=limits,
        )  # fmt: skip
        self.channel = grpc.aio.secure_channel(
            cluster.started.grpc_address,
            grpc.ssl_channel_credentials(trusted.pem),
            options=[("grpc.use_local_subchannel_pool", 1)],
        )

    async def over_http(self) -> AsyncGenerator[int]:
        """Yield the token ids of an answer, as they come."""
        body = {"prompt": [11], "max_tokens": 2, "stream": True, "return_token_ids": True}
        async with self.http.stream("POST", "/v1/completions", json=body) as reply:
            assert reply.status_code == 200, await reply.aread()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    for choice in json.loads(line.removeprefix("data: "))["choices"]:
                        for token in choice.get("token_ids") or ():
                            yield token

    async def over_grpc(self) -> AsyncGenerator[int]:
        request = GenerateRequest(token_ids=TokenIds(ids=[11]), stream=True)
        request.sampling.max_tokens = 2
        metadata = tuple(self.headers.items())
        stub = inference_pb2_grpc.InferenceStub(self.channel)
        call = stub.Generate(request, timeout=DEADLINE_S, metadata=metadata, wait_for_ready=True)
        async for reply in call:
            for token in reply.token_ids:
                yield token

    async def close(self) -> None:
        await self.http.aclose()
        await self.channel.close()


async def test_none_of_64_answers_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watcher, "RECHECK_S", 0.0)
    old, new = TestAuthority.make("old"), TestAuthority.make("new")
    old_key, new_key_ = new_key(), new_key()
    keys = tmp_path / "keys.json"
    write_keys(keys, [key(old_key)])
    tls = old.issue(tmp_path / "tls")
    options = {"client_tls": tls, "api_keys": keys}
    async with Cluster(tmp_path, **options) as cluster, AsyncExitStack() as stack:
        cluster.trust(old.pem, {"authorization": f"Bearer {old_key}"})
        rank = FakeRank("d0")
        rank.max_running = 2 * STREAMS
        await cluster.add(FakeWorker("p0"), rank)
        client = Client(cluster, old, old_key)
        stack.push_async_callback(client.close)
        answers = [
            await stack.enter_async_context(aclosing(make()))
            for make in (client.over_http, client.over_grpc)
            for _ in range(STREAMS)
        ]
        firsts = [asyncio.create_task(anext(answer)) for answer in answers]
        starts = [await within(rank.starts.get()) for _ in answers]
        for start in starts:
            rank.send(tokens_of(start, [20]))
        assert await within(asyncio.gather(*firsts)) == [20] * len(answers)

        new.issue(tmp_path / "tls")
        write_keys(keys, [key(new_key_)])
        for role, name in (("router", "router-0"), ("decode", "d0"), ("prefill", "p0")):
            reissue(role, name)
        renewed = Client(cluster, new, new_key_)
        stack.push_async_callback(renewed.close)
        assert (await renewed.http.get("/v1/models")).status_code == 200
        stale = {"authorization": f"Bearer {old_key}"}
        assert (await renewed.http.get("/v1/models", headers=stale)).status_code == 401

        for start in starts:
            rank.send(tokens_of(start, [21], first_index=1, last=True))
        for answer in answers:
            assert [token async for token in answer] == [21]
