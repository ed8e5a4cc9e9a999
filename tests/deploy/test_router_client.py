"""A router that dies while it answers is a router that does not answer: commands say so, and
`baton serve`, which asks every two seconds, goes on."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton.deploy.client.ask import stream_text
from baton.deploy.client.router_client import RouterClient
from baton.deploy.client.router_options import RouterAddress
from baton.deploy.errors import NotRunning

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WORD = b'data: {"choices": [{"text": "so "}]}\n'


@contextmanager
def says(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives this answer to its one client, and ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.join(60)


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", HEAD + b'{"workers": [', HEAD.replace(b"500", b"4") + b"<a/>"],
    ids=["nothing", "no HTTP", "half an answer", "no JSON"],
)
def test_half_an_answer_is_none(answer: bytes) -> None:
    with says(answer) as url, pytest.raises(NotRunning, match="answers"):
        RouterClient(url).server_info()


def test_a_command_without_a_key_is_told_its_option() -> None:
    body = b'{"error": {"message": "there is no API key; send the header `x-api-key: KEY`"}}'
    reply = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    told = "answers 401: there is no API key; give one by --api-key or BATON_API_KEY$"
    with says(reply) as url, pytest.raises(NotRunning, match=told):
        RouterClient(url).server_info()


@pytest.mark.parametrize("end", [b"", b"5\r\ndata"], ids=["between chunks", "in a chunk"])
def test_a_stream_that_breaks_off_says_so(end: bytes) -> None:
    word = b"%x\r\n%b\r\n" % (len(WORD), WORD)
    with says(CHUNKED + word + end) as url:
        stream = stream_text(RouterAddress(url), {}, chat=False)
        assert next(stream) == ("text", "so ")
        with pytest.raises(NotRunning, match="answer"):
            next(stream)
