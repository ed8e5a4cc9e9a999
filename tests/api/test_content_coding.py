"""Compressed bodies: gzip within bounds, other codings refused."""

import asyncio
import gzip
import json
import random
import zlib

import httpx
import pytest
from api.conftest import MAX_BODY
from fake_backend import Connect, FakeBackend
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from baton.api import content_coding
from baton.api.replies import ErrorReply
from baton.core.errors import ApiError

BODY = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
PACKED = gzip.compress(BODY, mtime=0)  # names of tests have it: the same in each process
JSON = {"content-type": "application/json"}


async def post(
    connect: Connect, content: bytes, coding: str = "gzip", path: str = "/v1/completions"
) -> httpx.Response:
    async with connect() as client, asyncio.timeout(60):
        headers = {**JSON, "content-encoding": coding}
        return await client.post(path, content=content, headers=headers)


@pytest.mark.parametrize("coding", ["gzip", "GZIP", " x-gzip "])
async def test_a_gzip_body_is_read(connect: Connect, coding: str) -> None:
    reply = await post(connect, PACKED, coding)
    assert reply.status_code == 200, reply.text
    assert reply.json()["object"] == "text_completion"


@pytest.mark.parametrize("coding", ["", "identity", "Identity"])
async def test_a_body_without_a_coding_is_read_as_it_is(connect: Connect, coding: str) -> None:
    assert (await post(connect, BODY, coding)).status_code == 200


@pytest.mark.parametrize("coding", ["br", "zstd", "deflate", "gzip, gzip", "gzip,br", "nonsense"])
async def test_another_coding_is_answered_with_415(connect: Connect, coding: str) -> None:
    reply = await post(connect, PACKED, coding)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "gzip")
    assert reply.json()["error"]["param"] == "content-encoding"
    reply = await post(connect, PACKED, coding, "/v1/messages")
    assert (reply.status_code, reply.json()["type"]) == (415, "error")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (BODY, "is no gzip"),
        (zlib.compress(BODY), "is no gzip"),
        (PACKED[:-1], "ends too early"),
        (PACKED[:5], "ends too early"),
        (PACKED + PACKED, "follows its end"),
        (PACKED + b"x", "follows its end"),
        (PACKED[:-8] + b"x" * 8, "is no gzip"),
    ],
)
async def test_what_is_no_gzip_is_answered_with_400(
    connect: Connect, content: bytes, why: str
) -> None:
    reply = await post(connect, content)
    assert reply.status_code == 400
    assert why in reply.json()["error"]["message"]


async def test_what_comes_out_is_bounded(connect: Connect, backend: FakeBackend) -> None:
    fits = BODY + b" " * (MAX_BODY - len(BODY))
    assert (await post(connect, gzip.compress(fits))).status_code == 200
    assert (await post(connect, gzip.compress(fits + b" "))).status_code == 413
    bomb = gzip.compress(b" " * (32 << 20))
    assert len(bomb) > MAX_BODY, "what goes in is bounded too"
    assert (await post(connect, bomb)).status_code == 413
    assert len(backend.seen) == 1


async def test_transfer_codings_but_chunked_are_answered_with_501(connect: Connect) -> None:
    async with connect() as client:
        headers = {**JSON, "transfer-encoding": "gzip, chunked"}
        reply = await client.post("/v1/completions", content=BODY, headers=headers)
    assert reply.status_code == 501
    assert reply.json()["error"]["param"] == "transfer-encoding"


async def test_a_request_without_a_body_may_name_any_coding(connect: Connect) -> None:
    async with connect() as client:
        reply = await client.get("/v1/models", headers={"content-encoding": "gzip"})
    assert reply.status_code == 200


def receiver(parts: list[bytes]) -> Receive:
    """Return a `receive` of a body in parts, and then of the client's end."""
    left = list(parts)

    async def receive() -> Message:
        if not left:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def decoded(parts: list[bytes], most: int = 1 << 30) -> list[bytes]:
    """Return the parts that an application gets."""
    found: list[bytes] = []

    async def app(_: Scope, receive: Receive, __: Send) -> None:
        while (message := await receive())["type"] == "http.request":
            found.append(message["body"])
            if not message["more_body"]:
                assert (await receive())["type"] == "http.disconnect"
                return

    async def send(_: Message) -> None:
        raise AssertionError("nothing is to be sent")

    headers = [(b"content-encoding", b"gzip"), (b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "path": "/x", "headers": headers}
    receive = content_coding.decoded(scope, Headers(scope=scope), receiver(parts), most)
    assert not isinstance(receive, ErrorReply)
    await app(scope, receive, send)
    return found


@pytest.mark.parametrize("seed", range(30))
async def test_any_body_in_any_parts_comes_out_whole_and_in_small_parts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    size = rng.choice([1, 7, 64, 1000, 65536])
    monkeypatch.setattr(content_coding, "PART_BYTES", size)
    length = rng.choice([0, 1, size - 1, size, size * 2, size * 3 + 5, size * 20])
    body = rng.randbytes(length) if rng.random() < 0.5 else bytes(length)
    packed = gzip.compress(body, rng.choice([0, 1, 9]))
    cuts = sorted(rng.randrange(len(packed) + 1) for _ in range(rng.choice([0, 1, 5])))
    parts = [packed[a:b] for a, b in zip([0, *cuts], [*cuts, len(packed)], strict=True)]
    found = await decoded(parts)
    assert b"".join(found) == body
    assert max(map(len, found)) <= size


async def test_what_goes_in_is_bounded_though_nothing_comes_out() -> None:
    header = b"\x1f\x8b\x08\x10" + bytes(6)  # a comment without end follows
    with pytest.raises(ApiError, match="too large"):
        await decoded([header, *[b"x" * 10_000] * 4], 30_000)
