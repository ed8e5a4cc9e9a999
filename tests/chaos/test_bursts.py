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

from baton.bench.checkpoints import write_checkpoint

pytestmark = pytest.mark.chaos

BODY = json.dumps({"prompt": [5, 6, 7, 8], "max_tokens": 2}).encode()
ASK = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
ENDS = {"200", "408", "429", "503"}  # 408: the client was too busy to send its request in time


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "model", TINY)


async def ask(host: str, port: int, tls: ssl.SSLContext | None) -> str:
    """Return the status of one request's reply; otherwise, what happened instead."""
    part = "handshake"
    try:
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            try:
                writer.write(ASK)
                part = "reply"
                reply = await reader.read()
            finally:
                writer.close()
    except TimeoutError:
        return f"no end of the {part}"
    except OSError as error:
        return f"{type(error).__name__} in place of the {part}"
    return reply[9:12].decode() or "no reply"


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
