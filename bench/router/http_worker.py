"""HTTP workers for another system's router: the cheapest that it takes, with canned answers."""

import asyncio
import json
from multiprocessing.connection import Connection
from typing import cast

import uvloop

_ANSWER = {
    "text": "x",
    "meta_info": {
        "id": "1",
        "prompt_tokens": 4,
        "completion_tokens": 1,
        "finish_reason": {"type": "length", "length": 1},
    },
}
_ABOUT = {
    "model_path": "canned",
    "served_model_name": "canned",
    "tokenizer_path": "canned",
    "is_generation": True,
    "tp_size": 1,
    "dp_size": 1,
    "version": "0.5",
}
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
_STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_TOKEN = b'data: {"choices":[{"index":0,"text":"x","token_ids":[40]}]}\n\n'
_END = b"data: [DONE]\n\n"


class _Connection(asyncio.Protocol):
    """A keep-alive connection that answers whatever is posted.

    A request for a stream is given a token at once and one at each further step of its worker.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._read = b""
        self._left = 0  # tokens of the stream under way
        self._closes = False  # after it
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:end].lower()
            length = _length(head)
            if len(self._read) < end + 4 + length:
                return
            body = self._read[end + 4 : end + 4 + length]
            self._read = self._read[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        if not head.startswith(b"post"):
            text = json.dumps(_ABOUT).encode()
            self._transport.write(_JSON % (len(text), text))
            return
        asked = json.loads(body)
        if not asked.get("stream"):
            text = json.dumps(_ANSWER).encode()
            self._transport.write(_JSON % (len(text), text))
            return
        self._transport.write(_STREAM)
        self._left = int(asked["max_tokens"])
        self._closes = b"connection: close" in head
        self._token()

    def _token(self) -> None:
        if self._transport is None:
            return
        self._left -= 1
        self._transport.write(_chunk(_TOKEN))
        if self._left:
            asyncio.get_running_loop().call_later(self._step_s, self._token)
        else:
            self._transport.write(_chunk(_END) + b"0\r\n\r\n")
            if self._closes:
                self._transport.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _length(head: bytes) -> int:
    _, found, rest = head.partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def serve_http(pipe: Connection, plan: tuple[int, float]) -> None:
    """Serve as workers. plan: their number, and the seconds of a step. Answers its start with their
    URLs, and ends when the pipe is closed.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe, *plan))


async def _serve(pipe: Connection, count: int, step_s: float) -> None:
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Connection(step_s), "127.0.0.1", 0, backlog=512)
        for _ in range(count)
    ]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    pipe.send([f"http://127.0.0.1:{port}" for port in ports])
    try:
        while await asyncio.to_thread(pipe.recv):
            pass
    except EOFError:
        pass
    for server in servers:
        server.close()
