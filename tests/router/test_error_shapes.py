"""Every error of a real router is JSON in the API's form, whoever finds it."""

import asyncio
import json
from pathlib import Path

import pytest
from fake_workers import DEADLINE_S
from router_neighbours import Cluster

HOST = b"Host: x\r\nX-Request-Id: mine\r\n"
JSON = b"Content-Type: application/json\r\n"
BAD_REQUESTS = {
    "an unknown path": (b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n", 404),
    "a known path, another method": (b"DELETE /v1/models HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "a body too long to be read": (
        b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 99999999\r\n\r\n",
        413,
    ),
    "a body that is no JSON": (
        b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 2\r\n\r\n{]",
        400,
    ),
    "a form": (b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n{}", 415),
    "another site": (b"GET /v1/models HTTP/1.1\r\nOrigin: http://a.b\r\n" + HOST + b"\r\n", 403),
    "no worker": (
        b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + b"Content-Length: 14\r\n\r\n"
        b'{"prompt":"x"}',
        503,
    ),
    "too many headers": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 200 + b"\r\n", 431),
    "headers too long": (b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"b" * 70_000, 431),
    "a wrong header": (b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\nno colon\r\n\r\n", 400),
    "two lengths": (
        b"POST /generate HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        400,
    ),
}
"""Requests, and the status of the reply. All have an id, which the reply repeats."""


@pytest.mark.parametrize("bad", BAD_REQUESTS)
async def test_errors_of_the_server_and_of_the_application_look_alike(
    tmp_path: Path, bad: str
) -> None:
    raw, status = BAD_REQUESTS[bad]
    async with Cluster(tmp_path, worker_wait_s=0) as cluster:
        head, body = await exchanged(cluster, raw.replace(b"Host: x", b"Host: localhost"))
        assert head.startswith(f"http/1.1 {status} ".encode()), head
        assert b"content-type: application/json" in head
        assert b"x-request-id: mine" in head, head
        error = json.loads(body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["message"]
        # The form of Anthropic's API at its endpoints.
        line, rest = raw.split(b"\r\n", 1)
        method, _, protocol = line.split(b" ")
        raw = b"%b /v1/messages/x %b\r\n%b" % (method, protocol, rest)
        head, body = await exchanged(cluster, raw.replace(b"Host: x", b"Host: localhost"))
        found = json.loads(body)
        assert found["type"] == "error"
        assert found["error"].keys() == {"type", "message"}


@pytest.mark.parametrize("raw", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"hello\r\n\r\n"])
async def test_what_is_no_http_gets_json_too(tmp_path: Path, raw: bytes) -> None:
    async with Cluster(tmp_path) as cluster:
        head, body = await exchanged(cluster, raw)
        assert head.startswith(b"http/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_request"


async def exchanged(cluster: Cluster, raw: bytes) -> tuple[bytes, bytes]:
    """Send bytes; return the reply's head in lower case, and its body."""
    host, _, port = cluster.started.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(raw)
        async with asyncio.timeout(DEADLINE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            return head, await reader.readexactly(length)
    finally:
        writer.close()
