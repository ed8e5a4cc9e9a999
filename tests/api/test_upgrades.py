"""Requests that ask for another protocol, which a server may answer as any other request."""

import asyncio
import shutil
from pathlib import Path

import httptools
import pytest
from api.attacked_http import DEADLINE_S, serving

from baton.api.access.client_limits import Refusal
from baton.api.server.request_parser import RequestParser

BODY = b'{"prompt":"ada"}'
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
UPGRADES = {
    "h2c": H2C,
    "websocket": b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    "kept": b"Connection: keep-alive, Upgrade\r\nUpgrade: foo/2\r\n",
}
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n6\r\n%b\r\na\r\n%b\r\n0\r\n\r\n" % (
    BODY[:6],
    BODY[6:],
)
LAST = b"POST /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast"
JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
  public static void main(String[] given) throws Exception {
    var client = HttpClient.newHttpClient();
    var asked = HttpRequest.newBuilder(URI.create(given[0]))
      .POST(HttpRequest.BodyPublishers.ofString(given[1])).build();
    for (int i = 0; i < 3; i++) {
      var reply = client.send(asked, HttpResponse.BodyHandlers.ofString());
      System.out.println(reply.statusCode() + " " + reply.body());
    }
  }
}
"""


def head(upgrade: bytes, method: bytes = b"POST") -> bytes:
    return method + b" /echo HTTP/1.1\r\nHost: x\r\n" + upgrade


@pytest.mark.parametrize("body", [LENGTH, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("upgrade", UPGRADES.values(), ids=UPGRADES)
async def test_the_body_behind_an_upgrade_is_read(upgrade: bytes, body: bytes) -> None:
    asked = head(upgrade) + body
    async with serving() as server:
        reply = await server.says(asked + asked + LAST)
        assert reply.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert reply.count(BODY) == 2 and reply.endswith(b"last")
        assert server.refusals(Refusal.MALFORMED) == 0


@pytest.mark.parametrize("cut", range(20, 190, 17))
async def test_it_may_come_in_pieces(cut: int) -> None:
    asked = head(H2C) + CHUNKED + LAST
    async with serving() as server:
        reader, writer = await server.connect()
        for part in (asked[:cut], asked[cut:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        reply = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        assert BODY in reply and reply.endswith(b"last")


async def test_a_get_that_asks_for_an_upgrade_is_answered_and_the_connection_goes_on() -> None:
    async with serving() as server:
        get = head(H2C, b"GET") + b"\r\n"
        reply = await server.says(get + get + LAST)
        assert reply.count(b"HTTP/1.1 200 OK\r\n") == 3


async def test_close_beside_an_upgrade_closes() -> None:
    async with serving() as server:
        asked = head(b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n") + LENGTH
        reply = await server.says(asked)
        assert reply.endswith(BODY) and b"connection: close" in reply


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n01234",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
    ],
)
async def test_bad_framing_behind_an_upgrade_is_refused_as_ever(framing: bytes) -> None:
    async with serving() as server:
        assert (await server.says(head(H2C) + framing)).startswith(b"HTTP/1.1 400 ")


class Seen:
    """The calls of a parser."""

    def __init__(self) -> None:
        self.url = b""
        self.calls: list[object] = []

    def on_message_begin(self) -> None:
        self.calls.append("begin")

    def on_url(self, url: bytes) -> None:
        self.calls.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.calls.append((name, value))

    def on_headers_complete(self) -> None:
        self.calls.append("headers")

    def on_body(self, body: bytes) -> None:
        self.calls.append(body)

    def on_message_complete(self) -> None:
        self.calls.append("complete")


@pytest.mark.parametrize("body", [LENGTH, b"Content-Length: 0\r\n\r\n", b"\r\n"])
def test_the_calls_are_those_of_a_request_that_asks_for_nothing(body: bytes) -> None:
    plain, asking = Seen(), Seen()
    other = b"X: Upgrade, HTTP2-Settings\r\nY: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    httptools.HttpRequestParser(plain).feed_data(head(other) + body)
    RequestParser(asking).feed_data(head(H2C) + body)
    names = {b"X": b"Connection", b"Y": b"Upgrade"}
    renamed = [(names.get(e[0], e[0]), e[1]) if isinstance(e, tuple) else e for e in plain.calls]
    assert asking.calls == renamed


async def printed(*command: str) -> str:
    """Run a client, and return what it prints."""
    client = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(client.communicate(), DEADLINE_S)
    return said.decode()


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
async def test_javas_client_is_understood(tmp_path: Path) -> None:
    source = tmp_path / "Ask.java"
    source.write_text(JAVA)
    async with serving() as server:
        url = f"http://127.0.0.1:{server.port}/echo"
        said = await printed("java", str(source), url, BODY.decode())
        assert said == f"200 {BODY.decode()}\n" * 3
        assert server.echoing == 3


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_is_understood_when_it_offers_http_2() -> None:
    async with serving() as server:
        url = f"http://127.0.0.1:{server.port}/echo"
        said = await printed("curl", "-sS", "--http2", "-d", BODY.decode(), url, url)
        assert said == BODY.decode() * 2
