"""Bursts of connections from one address at the router of a real cluster, far beyond its limits.

Each client gets its answer or its refusal, and none hangs. The router has few descriptors in half
of the runs.
"""

import asyncio
import json
import ssl
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest
from chaos.served import DEADLINE_S, serving
from deploy.tiny_worker import TINY
from https_certificates import TestAuthority

from baton.api.access.client_limits import ClientLimits
from baton.bench.checkpoints import write_checkpoint

pytestmark = pytest.mark.chaos

BODY = json.dumps({"prompt": [5, 6, 7, 8], "max_tokens": 2}).encode()
ASK = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
ENDS = {"200", "408", "429", "503"}  # 408: only where the client was too busy to send in time
HEADER_S = ClientLimits().header_s


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


class Asking(asyncio.Protocol):
    """A client that sends its request as soon as its connection is open, and reads to the end."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.sent: float | None = None
        self.reply = b""
        self.ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(ASK)
        self.sent = time.monotonic()

    def data_received(self, data: bytes) -> None:
        self.reply += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(exc)

    @property
    def part(self) -> str:
        return "handshake" if self.sent is None else "reply"

    def told(self, over_tls: bool) -> str:
        """Return the status of a whole reply; otherwise, what there is instead."""
        head, _, body = self.reply.partition(b"\r\n\r\n")
        if not head:
            return "no reply"
        if b"content-length: %d" % len(body) not in head.split(b"\r\n"):
            return "a part of the reply"
        status = head[9:12].decode()
        # Over TLS a request goes out with the last message of the handshake: it is never late.
        late = not over_tls and (self.sent or 0.0) - self.began > HEADER_S
        return "408 though in time" if status == "408" and not late else status


async def ask(host: str, port: int, tls: ssl.SSLContext | None) -> str:
    """Return the status of one request's reply; otherwise, what happened instead."""
    asking = Asking()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(DEADLINE_S):
            transport, _ = await loop.create_connection(lambda: asking, host, port, ssl=tls)
            try:
                error = await asking.ended
            finally:
                transport.close()
    except TimeoutError:
        return f"no end of the {asking.part}"
    except OSError as failure:
        error = failure
    if error is not None:
        return f"{type(error).__name__} in place of the {asking.part}"
    return asking.told(tls is not None)


def held(process: psutil.Process) -> int:
    """Return its descriptors, without connections that it dialled: it dials a worker at need."""
    connections = process.net_connections()
    served = {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}
    dialled = [
        each
        for each in connections
        if each.status == psutil.CONN_ESTABLISHED and each.laddr.port not in served
    ]
    return process.num_fds() - len(dialled)


@pytest.mark.parametrize(
    ("files", "clients", "over_tls"),
    [(0, 1700, False), (0, 1700, True), (256, 250, False), (256, 250, True)],
)
async def test_each_of_a_burst_gets_an_answer_or_its_refusal(
    files: int, clients: int, over_tls: bool, tiny: Path, tmp_path: Path
) -> None:
    options, context = [], None
    if over_tls:
        pair = TestAuthority.make().issue(tmp_path / "tls")
        options = ["--ssl-certfile", str(pair.certificate), "--ssl-keyfile", str(pair.key)]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with serving(tiny, tmp_path, *options, files=files) as served:
        url = served.http_url
        address = httpx.URL(url)
        async with httpx.AsyncClient(base_url=url, verify=context or False) as client:
            info = (await client.get("/server_info")).json()
        router = psutil.Process(info["router"]["pid"])
        assert await ask(address.host, address.port or 0, context) == "200"
        before = held(router)
        for _ in range(3):
            found = Counter(
                await asyncio.gather(
                    *(ask(address.host, address.port or 0, context) for _ in range(clients))
                )
            )
            print(files, clients, over_tls, dict(found))
            assert set(found) <= ENDS and found["200"], found
        until = time.monotonic() + DEADLINE_S
        while (now := held(router)) > before:
            assert time.monotonic() < until, (before, now)
            await asyncio.sleep(0.2)
