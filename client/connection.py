"""A client's connection: its address, its trust and its key."""

from dataclasses import dataclass, field
from typing import Any

import grpc

from baton.rpc.channel_options import OPTIONS

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RouterConnection:
    """The address at which a router listens for gRPC, and how to reach it."""

    address: str  # host:port
    api_key: str = field(default="", repr=False)
    tls: bool = False  # True: trust `authority`, or this machine's authorities
    authority: bytes | None = None  # PEM
    timeout_s: float = DEFAULT_TIMEOUT_S  # the deadline of calls that name none
    wait: bool = False  # True: calls wait, up to their deadline, while nobody listens there

    def call_options(self, timeout_s: float | None) -> dict[str, Any]:
        """Return what gRPC is told with each call. timeout_s: None for the usual deadline."""
        return {
            "timeout": self.timeout_s if timeout_s is None else timeout_s,
            "metadata": (("authorization", f"Bearer {self.api_key}"),) if self.api_key else (),
            "wait_for_ready": self.wait,
        }

    def open(self) -> grpc.Channel:
        """Return a new channel, for calls that block."""
        return self._open(grpc)

    def open_async(self) -> grpc.aio.Channel:
        """Return a new channel of the running event loop."""
        return self._open(grpc.aio)

    def _open(self, kind: Any) -> Any:
        if self.authority is None and not self.tls:
            return kind.insecure_channel(self.address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.authority)
        return kind.secure_channel(self.address, credentials, options=OPTIONS)
