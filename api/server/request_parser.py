"""httptools' parser of HTTP/1 requests, which reads the body of a request that asks for an upgrade.

A server may ignore `Upgrade` (RFC 9110, 7.8), and then answers the request as any other. Java's
client and `curl --http2` ask for `h2c` with every request in the clear. httptools takes all that
follows such a header for the other protocol, and drops it.
"""

from typing import Protocol

import httptools

_FRAMING = {b"connection", b"content-length", b"transfer-encoding"}
"""The headers that say where a request's body ends, and what follows it."""
_TUNNEL = b"CONNECT"
_VERSIONS = {"1.0", "1.1"}
"""The versions that are spoken here. httptools also takes 0.9 and 2.0, whose messages look unlike
these."""


class ParserEvents(Protocol):
    """The calls that a parser makes, as httptools names them."""

    url: bytes

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


class RequestParser:
    """A parser with the methods of `httptools.HttpRequestParser` that uvicorn calls."""

    def __init__(self, events: ParserEvents) -> None:
        self._events = events
        self._framing: list[tuple[bytes, bytes]] = []
        self._muted = False  # the header is one that was read before
        self._upgrade = False  # the header asks for another protocol
        self._parser = self._new_parser()

    def feed_data(self, data: bytes) -> None:
        """Parse more bytes. Raises `httptools.HttpParserError`."""
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as asked:
                if not self._upgrade:  # a tunnel: its bytes are nobody's
                    return
                data = data[asked.args[0] :]
                self._go_on()
            else:
                return

    def should_upgrade(self) -> bool:
        return False

    def should_keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    # What httptools calls

    def on_message_begin(self) -> None:
        if not self._muted:
            self._framing.clear()
            self._events.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._muted:
            self._events.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        if name.lower() in _FRAMING:
            self._framing.append((name.lower(), value))
        self._events.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.get_http_version() not in _VERSIONS:
            raise httptools.HttpParserError(f"HTTP/{self.get_http_version()} is not spoken here")
        self._muted = False
        self._upgrade = self._parser.should_upgrade() and self.get_method() != _TUNNEL
        if not self._upgrade:
            self._events.on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._events.on_body(body)

    def on_message_complete(self) -> None:
        if not self._upgrade:
            self._events.on_message_complete()

    def _go_on(self) -> None:
        """Read on behind a header as if it had not asked for an upgrade."""
        lines = [self.get_method() + b" / HTTP/" + self.get_http_version().encode()]
        for name, value in self._framing:
            if name == b"connection":
                options = (each.strip() for each in value.split(b","))
                value = b", ".join(each for each in options if each.lower() != b"upgrade")
            if value:
                lines.append(name + b": " + value)
        self._parser = self._new_parser()
        self._muted = True
        self._parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        return parser
