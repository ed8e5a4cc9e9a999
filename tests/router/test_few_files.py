"""A router that may open few files, and more clients than that."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from kit.polling import wait_until

DEADLINE_S = 60.0
"""The deadline of every wait; only a broken router reaches it."""
FILES = 256
CLIENTS = 300
FLOODS = 20
BODY = {"prompt": "hi", "max_tokens": 1}


@dataclass(frozen=True)
class Router:
    """The router's process."""

    pid: int
    http: tuple[str, int]
    grpc: tuple[str, int]

    def flood(self, port: tuple[str, int], says: bytes, open_: ExitStack) -> None:
        """Open many connections that say this and nothing more."""
        for _ in range(CLIENTS):
            try:
                client = open_.enter_context(socket.create_connection(port, DEADLINE_S))
                client.sendall(says)
            except OSError:  # it is closed already
                continue

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.http[0]}:{self.http[1]}{path}", timeout=DEADLINE_S)

    def generate(self) -> httpx.Response:
        url = f"http://{self.http[0]}:{self.http[1]}/v1/completions"
        return httpx.post(url, json=BODY, timeout=DEADLINE_S)

    def has_files_left(self) -> bool:
        """Wait until it has: connections that were told to leave have files until they do."""
        return wait_until(lambda: self.files() < FILES - 16, self.files)

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def refusals(self, reason: str) -> float:
        name = f'baton_router_refusals_total{{reason="{reason}"}} (.*)'
        found = re.search(name, self.get("/metrics").text)
        assert found is not None
        return float(found[1])


@contextmanager
def running(folder: Path, *words: str) -> Iterator[Router]:
    script = Path(__file__).with_name("few_files_router.py")
    paths = os.pathsep.join([str(script.parent.parent), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script), str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            http, grpc = (
                (host, int(port))
                for host, port in (each.rsplit(":", 1) for each in child.stdout.readline().split())
            )
            yield Router(child.pid, http, grpc)
            assert child.poll() is None, "it has ended"
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.wait(DEADLINE_S) == 0
        finally:
            child.kill()


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with running(tmp_path_factory.mktemp("few"), str(FILES)) as found:
        yield found


def test_clients_that_say_nothing_do_not_keep_others_out(router: Router) -> None:
    with ExitStack() as open_:
        router.flood(router.http, b"", open_)
        router.flood(router.grpc, b"", open_)
        assert router.get("/health").status_code == 200
        answer = router.generate()
        assert answer.status_code == 200, answer.text
        assert router.has_files_left()
        # On a busy machine more of them give way to the lack of files, before their limit is met.
        limits = ("connections_of_client", "descriptors")
        assert sum(router.refusals(limit) for limit in limits) > CLIENTS / 2
    assert router.get("/health").status_code == 200
    assert router.refusals("descriptors") < CLIENTS


def test_with_every_place_taken_health_is_answered_and_the_rest_shed(router: Router) -> None:
    body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    body += b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    with ExitStack() as open_:
        for _ in range(FLOODS):  # a burst's connections displace one another until they are read
            router.flood(router.http, body, open_)
            assert router.get("/health").status_code == 200
            refused = router.generate()
            if refused.status_code != 200:
                break
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "overloaded"
        assert router.has_files_left()
    while router.generate().status_code == 429:  # it hears of each client that has left
        pass
    assert router.generate().status_code == 200


def test_a_process_without_descriptors_comes_back(tmp_path: Path) -> None:
    with running(tmp_path, "128", "unbounded") as router:
        with ExitStack() as open_:
            router.flood(router.http, b"", open_)
            assert router.get("/health").status_code == 200
        assert router.generate().status_code == 200
        assert 0 < router.refusals("descriptors") < 20 * CLIENTS
