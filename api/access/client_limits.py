"""The limits of the ports that clients reach, and the reasons for which they refuse."""

import ipaddress
from dataclasses import dataclass, fields
from enum import StrEnum

from baton.core.errors import ConfigError

MAX_BODY_BYTES = 32 << 20
"""The largest body of a request. A million tokens as text or as ids is under 8 MB."""
LEAST_IDLE = 64
"""The gRPC calls that one address may have open and idle at least. Each call is idle until its
message has come, so with few places calls that begin together would end each other."""
HEALTH = "/health"
"""The one path that is answered while a server sheds load."""


class Refusal(StrEnum):
    """A reason to close a connection or to refuse a request: the label `reason` of a metric."""

    CONNECTIONS = "connections"
    CONNECTIONS_OF_CLIENT = "connections_of_client"
    DESCRIPTORS = "descriptors"
    HANDSHAKE = "handshake"
    HEADER_TIME = "header_time"
    HEADER_SIZE = "header_size"
    BODY_TIME = "body_time"
    MALFORMED = "malformed"
    PIPELINE = "pipeline"
    SLOW_READER = "slow_reader"
    STREAMS = "streams"
    KEY = "key"
    KEY_GUESSES = "key_guesses"


@dataclass(frozen=True)
class ClientLimits:
    """The limits of one server's HTTP and gRPC ports. Set once, from the command line."""

    header_s: float = 10.0  # from a connection, or a request's first byte, to the whole header
    body_s: float = 60.0  # from the header to the last byte of the body
    # An HTTP connection without a request is kept open so long: longer than by clients (httpx: 5 s)
    # and proxies (usually 60 s), whose next request would meet its end.
    idle_s: float = 75.0
    # A gRPC connection without a call, and a call of health or reflection on which nothing is said,
    # is kept open so long.
    grpc_idle_s: float = 300.0
    write_s: float = 30.0  # a client may leave what was sent to it unread so long
    header_bytes: int = 32 << 10  # request line and headers; over gRPC, the metadata
    connections: int = 4096  # fewer where the process may not open so many files
    client_connections: int | None = None  # of one address to a port; None: half of the port's
    http_streams: int | None = None  # requests answered at once; None: one each connection
    grpc_streams: int = 1024  # gRPC calls that are answered at once
    client_grpc_streams: int | None = None  # of one address, and of one key; None: half of all
    key_guesses_per_minute: int = 60  # refused keys of one address; then 429 instead of 401
    # Proxies, addresses and networks with commas between, whose X-Forwarded-For is believed: it
    # then is the address that key_guesses_per_minute counts. Empty: nobody's.
    forwarded_allow_ips: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises ConfigError."""
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and not value > 0:
                raise ConfigError(f"{each.name} is {value}; expected more than 0")
        for proxy in filter(None, self.forwarded_allow_ips.split(",")):
            _check_proxy(proxy.strip())

    def of_client(self, most: int) -> int:
        """Return the most connections of one address to a port. most: of all addresses to it."""
        return min(self.client_connections or max(most // 2, 1), most)

    @property
    def grpc_streams_of_client(self) -> int:
        """The most gRPC calls of one address, and of one key, that are answered at once."""
        return min(self.client_grpc_streams or max(self.grpc_streams // 2, 1), self.grpc_streams)

    @property
    def idle_grpc_streams(self) -> int:
        """The most gRPC calls whose message has not come, and the most of health and reflection."""
        return max(self.grpc_streams // 2, 2 * LEAST_IDLE)

    @property
    def idle_grpc_streams_of_client(self) -> int:
        """The most of `idle_grpc_streams` of one address, and of one key."""
        return max(self.grpc_streams_of_client // 2, LEAST_IDLE)


def _check_proxy(text: str) -> None:
    """Raise ConfigError for what is neither an address nor a network."""
    try:
        ipaddress.ip_network(text)
    except ValueError as err:
        raise ConfigError(
            f"--forwarded-allow-ips names {text!r}; expected addresses and networks of proxies, as "
            "10.0.0.7 or 10.1.0.0/16, with commas between"
        ) from err


def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 one, all of
    whose addresses one host may use."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
