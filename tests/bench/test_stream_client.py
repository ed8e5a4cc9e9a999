"""The streaming client, against a server whose chunks arrive as badly cut as TCP allows."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from baton.bench.cluster.load import Load, measure, run
from baton.bench.cluster.stream_client import RequestFailed, StreamedAnswer, complete
from baton.deploy.client.router_options import RouterAddress

Respond = Callable[[dict[str, object]], list[bytes]]
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def _server(respond: Respond) -> AsyncIterator[str]:
    """Answers each request with the given pieces, each a write of its own, then closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        for piece in respond(body):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _chunk(event: object) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _stream(ids: list[list[int]]) -> bytes:
    events: list[object] = [{"choices": [{"text": "", "token_ids": new}]} for new in ids]
    usage = {"prompt_tokens_details": {"cached_tokens": 3}}
    events.append({"choices": [], "usage": usage, "timings": {"ttft_us": 5}})
    return OK + b"".join(map(_chunk, events)) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


async def test_tokens_are_read_whole_however_the_bytes_are_cut() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ids = [[rng.randrange(512) for _ in range(rng.randrange(4))] for _ in range(20)]
    whole = _stream(ids)
    cuts = sorted(rng.sample(range(1, len(whole)), 30))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    async with _server(lambda body: pieces) as url:
        answer = await complete(url, {"prompt": [1]}, deadline_s=10)
    assert answer.token_ids == tuple(token for new in ids for token in new)
    assert list(answer.token_times) == sorted(answer.token_times) and answer.ttft >= 0
    assert answer.cached_tokens == 3 and answer.timings == {"ttft_us": 5}


async def test_a_refusal_says_what_the_server_said() -> None:
    reply = b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"error": {"message": "queue is full"}}'
    async with _server(lambda body: [reply]) as url:
        with pytest.raises(RequestFailed, match=r"429.*queue is full"):
            await complete(url, {}, deadline_s=10)


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (OK + _chunk({"error": {"message": "rank lost"}}), "rank lost"),
        (OK + _chunk({"choices": []}), "no tokens"),
        (b"", "closed before an answer"),
    ],
)
async def test_a_broken_stream_is_no_answer(stream: bytes, complaint: str) -> None:
    async with _server(lambda body: [stream]) as url:
        with pytest.raises(RequestFailed, match=complaint):
            await complete(url, {}, deadline_s=10)


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(RequestFailed, match=r"http://127\.0\.0\.1:1"):
        await complete("http://127.0.0.1:1", {}, deadline_s=10)


async def test_a_round_sends_every_prompt_and_bounds_what_is_under_way() -> None:
    shape = Load(requests=6, concurrency=2, input_len=4, output_len=2)
    prompts = shape.draw(random.Random(1), vocab_size=9)
    seen: list[dict[str, object]] = []

    def respond(body: dict[str, object]) -> list[bytes]:
        seen.append(body)
        return [_stream([[1], [2]])]

    async with _server(respond) as url:
        answers = await run(RouterAddress(url), shape, prompts)
    assert sorted(map(str, (body["prompt"] for body in seen))) == sorted(map(str, prompts))
    assert all(body["ignore_eos"] and body["max_tokens"] == 2 for body in seen)
    assert [a.token_ids for a in answers] == [(1, 2)] * 6


def test_rates_are_over_the_round_and_latencies_over_its_tokens() -> None:
    shape = Load(requests=2, concurrency=2, input_len=10, output_len=3)
    answers = [
        StreamedAnswer(0.0, (1.0, 1.5, 2.0), (1, 2, 3), 0, {}),
        StreamedAnswer(0.0, (2.0, 2.1, 4.0), (1, 2, 3), 0, {}),
    ]
    found = measure(shape, answers)
    assert found["output_tok_s"] == 6 / 4.0 and found["total_tok_s"] == 26 / 4.0
    assert (found["ttft_ms_p50"], found["ttft_ms_p99"]) == (1000, 2000)
    assert found["itl_ms_p50"] == 500 and found["itl_ms_p99"] == pytest.approx(1900)
