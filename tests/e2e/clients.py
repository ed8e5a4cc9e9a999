"""Short ways to ask the cluster, over each protocol."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import grpc
from oracle.reference import Oracle

from baton.bench.cluster.stream_client import exchange
from baton.deploy.cluster.cluster import Cluster
from baton.proto import common_pb2, inference_pb2, inference_pb2_grpc

DEADLINE_S = 120.0
VOCAB_SIZE = 320
"""The vocabulary of the oracle's checkpoints."""


def prompts_of(
    rng: random.Random, lengths: Sequence[int], vocab_size: int = VOCAB_SIZE
) -> list[list[int]]:
    """Random ids, the special ones left out."""
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


async def http_greedy(
    cluster: Cluster, prompts: Sequence[Sequence[int]], n: int, **more: object
) -> list[list[int]]:
    """All at once; `n` tokens each, streamed."""
    greedy = {"temperature": 0, "max_tokens": n, "ignore_eos": True, "return_token_ids": True}
    bodies = [{"prompt": list(prompt)} | greedy | more for prompt in prompts]
    each = [exchange(cluster.address, body, DEADLINE_S) for body in bodies]
    return [list(reply.answer().token_ids) for reply in await asyncio.gather(*each)]


def assert_same_where_it_went_on(
    oracle: Oracle,
    model: Path,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    expected: Sequence[Sequence[int]],
) -> None:
    """The answers are the greedy ones that are `expected`, though a rank was lost on their way.

    Who goes on reads in chunks what was decoded token by token before: sums in another order, which
    move logits by some 1e-6. Where two answers differ, the oracle says whether that was a near tie.
    """
    for prompt, answer, wanted in zip(prompts, answers, expected, strict=True):
        if list(answer) != list(wanted):
            oracle.assert_all_greedy(model, [prompt], [answer], len(wanted))


async def grpc_replies(
    cluster: Cluster, request: inference_pb2.GenerateRequest
) -> list[inference_pb2.GenerateReply]:
    async with grpc.aio.insecure_channel(cluster.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        key = (("x-api-key", cluster.address.api_key),)
        call = stub.Generate(request, timeout=DEADLINE_S, metadata=key)
        return [reply async for reply in call]


def greedy_request(prompt: Sequence[int], n: int) -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(
        token_ids=inference_pb2.TokenIds(ids=prompt),
        sampling=common_pb2.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True),
        stream=True,
    )
